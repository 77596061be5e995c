// The log of a run as the engine makes it (docs/monitoring.md, "Run log"): what a step was, from all data
// ranks, written by rank 0 of the job. Owned by RunMonitor, used by the engine's thread. Nothing here makes a
// GPU wait: losses are summed and shared on the device, and read with the facts of their step.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "config/config_types.h"
#include "monitor/run_log_writer.h"

namespace zerorun {

struct EngineState;

/// What run.json says of an engine, without what RunLog::start() adds. `parameters`: of the whole model.
RunRecord run_record_of(const EngineState& state, std::vector<LoggedParameter> parameters);

class RunLog {
 public:
  /// Opens the files on rank 0. Throws UserError.
  RunLog(const RunLogConfig& config, Mesh mesh);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// Completes `run` with what the ranks are, and writes it. A collective. Throws UserError on all ranks.
  void start(RunRecord run);
  /// The hashes of all parameters before the first update that this engine makes, after `step` steps.
  void write_start(int64_t step, const HashText& values);

  /// Those of all ranks, for the steps from now on.
  void set_tokens_per_step(int64_t tokens) { tokens_per_step_ = tokens; }
  void add_loss(const at::Tensor& loss);
  void drop_losses();
  /// From here on losses are those of the next step.
  void begin_step();
  /// Tells rank 0 the losses of the step that began last. A collective.
  void share_losses();
  /// Completes `step` with losses, time and elements sent, and writes it. The step's facts must be known.
  void end_step(StepRecord step);

 private:
  bool writes() const { return writer_.has_value(); }
  void add_losses(StepRecord& step) const;
  std::map<std::string, double> elements_sent() const;

  Mesh mesh_;
  std::filesystem::path path_;
  std::optional<RunLogWriter> writer_;  // on rank 0
  at::Tensor sum_;                      // of this rank's losses, on the device; undefined: there were none
  int64_t losses_ = 0;
  at::Tensor mean_;     // of the step that began last; undefined: it has no loss
  at::Tensor on_host_;  // by data rank: the mean, then for each whether it has one
  std::chrono::steady_clock::time_point last_end_;
  std::map<std::string, double> sent_;  // elements until the last end_step()
  bool has_begun_ = false;
  int64_t step_ = 0;  // that ended last
  std::optional<int64_t> tokens_per_step_;
  int exceptions_;  // that were under way when this was made
};

}  // namespace zerorun
