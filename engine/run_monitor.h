// The events of a run: what an engine itself sends to the monitors after each optimizer step, and those of
// the program. Owned by EngineState, used by its thread. Only rank 0 of the job has monitors. Other ranks
// take part in the run log and the timeline, if there are such. Nothing here makes a GPU wait: losses are
// summed on the device, and read with the facts of their step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/communication_log.h"
#include "comm/mesh.h"
#include "config/monitoring_config.h"
#include "monitor/monitors.h"

namespace zerorun {

class RunLog;
class TimelineSession;
struct StepRecord;

class RunMonitor {
 public:
  /// A collective if the config enables a monitor that writes files, the run log, or a timeline. Throws
  /// UserError on all ranks if rank 0 cannot write files of monitors or the log, or a rank its timeline.
  RunMonitor(const MonitoringConfig& config, Mesh mesh, EventSink sink);
  ~RunMonitor();
  RunMonitor(const RunMonitor&) = delete;
  RunMonitor& operator=(const RunMonitor&) = delete;

  /// Null if there is no run log.
  RunLog* run_log() { return run_log_.get(); }

  /// Adds the loss of a micro-step. The event has their mean.
  void add_loss(const at::Tensor& loss);
  /// The mean loss of an optimizer step over data ranks, and that of this rank's data coordinate, in place of
  /// those of its micro-steps. `own` is read on the last pipeline stage only.
  void set_loss(const at::Tensor& mean, const at::Tensor& own);
  void drop_losses();

  struct Step {
    double lr = 0;  // of the first parameter group
    std::optional<double> loss_scale = {};
    int64_t samples = 0;  // of all steps, with this one
  };
  /// Begins the events of a step, before its facts are computed: from here on losses are those of the next.
  void begin_step(const Step& step);
  /// Tells rank 0 what the run log needs of the step that began last. A collective if there is a run log.
  void share_step();
  /// Writes the events of the step that began last. Its facts must be known. `record`: what else the run log
  /// has of it.
  void end_step(double gradient_norm, StepRecord record);

  /// Writes an event of the program. Throws UserError on each rank if `tag` is none.
  void log(const std::string& tag, double value, int64_t samples);

  /// The timeline of this rank; null: there is none. This rank is one of those that have one, or all have
  /// none.
  TimelineSession* timeline() const { return timeline_.get(); }

  /// A table of this rank's collectives; empty unless this is rank 0 and comms_logger is enabled.
  std::string communication() const { return log_ ? log_->table() : ""; }

 private:
  bool follows() const;
  void add_to_events(const at::Tensor& loss);
  void record_in(const std::shared_ptr<CommunicationLog>& log);

  Mesh mesh_;
  std::optional<Monitors> monitors_;  // on rank 0
  std::unique_ptr<RunLog> run_log_;   // on all ranks, if there is one
  std::shared_ptr<CommunicationLog> log_;
  std::unique_ptr<TimelineSession> timeline_;
  at::Tensor sum_;  // of losses, on the device; undefined: there were none
  int64_t losses_ = 0;
  std::optional<Step> step_;  // the events of which are not written yet
  at::Tensor mean_;           // of that step's losses, in host memory
  bool has_mean_ = false;
};

}  // namespace zerorun
