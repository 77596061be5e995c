// What an Engine is made of, and the parts of an optimizer step. Internal to engine/.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/model_parameters.h"
#include "engine/step_timer.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"
#include "optim/shard_optimizer.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"
#include "zero/residency.h"
#include "zero/stage.h"

namespace zerorun {

// Gradients are multiplied by `before` on their way into the sum over ranks, divided by `after` behind it.
struct Averaging {
  double before;
  double after;
};

struct Engine::State {
  State(torch::nn::Module& model, Config config, std::shared_ptr<Communicator> communicator,
        ModelParameters parameters, const InitializeOptions& options);
  ~State();

  /// Throws UserError once a backward has failed. `call`: "step".
  void check_not_failed(const std::string& call) const;
  void check_before_step() const;
  /// Ends the reduction and has the device work out what the step comes to, the same bits on every rank and
  /// at every stage.
  void measure();
  /// For optimizers that do not apply gradients as they are: makes what they apply, and measures that.
  void make_directions();
  /// Sums up over ranks what was tallied: the step's facts, on their way to the host.
  void agree(const StepRule& rule);
  /// Whether the host must know what the step comes to before it goes on.
  bool waits_for_facts() const;
  /// Waits for what measure() found: sets grad_norm, not_finite and step_applied.
  void learn();
  void update();
  /// What follows from the last step once it is known: the loss scale, what is logged, that the schedule is
  /// to be asked. Throws TrainingError.
  void conclude();
  /// Learns and concludes the last step, where that is still open.
  void settle();
  double loss_scale() const { return scaler ? scaler->scale() : 1; }
  /// Asks the schedule for what the next step uses.
  void ask_schedule();
  /// Does so behind a step that was applied, if that is still to be done: a schedule of the program that
  /// threw is asked again, so that no step is taken with the values of an earlier one.
  void follow_schedule();
  /// Tells of a skipped step and moves the loss scale. Throws TrainingError.
  void follow_loss_scale();
  void report_time();
  /// Optimizer state per parameter, in bytes: the mean over groups.
  double moment_bytes() const;

  std::vector<Shard> make_shards();
  std::unique_ptr<ShardOptimizer> make_optimizer(const InitializeOptions& options);
  /// The number of the first element of `rank`'s slice among the sums over ranks of all buckets.
  int64_t sum_number(int bucket, int rank) const;
  const std::string& parameter_of_sum(int64_t number) const;
  std::string name_not_finite(std::span<const double> gradients, std::span<const double> sums) const;

  torch::nn::Module* model;
  Config config;
  std::shared_ptr<Communicator> communicator;
  StagePolicy policy;
  Averaging averaging;
  Buckets buckets;
  std::unique_ptr<Residency> residency;  // of marked buckets
  GradientReducer reducer;
  std::vector<int> shard_bucket;  // the bucket of each of the optimizer's shards
  std::vector<int> own_shards;    // those of this rank's slices, by bucket
  std::unique_ptr<ShardOptimizer> optimizer;
  std::vector<int64_t> first_sums;          // by bucket: the number of its first sum over ranks
  Schedule schedule;                        // may be empty
  torch::optim::LRScheduler* lr_scheduler;  // the program's own; may be null
  bool schedule_behind = false;             // a step was applied, and the schedule not yet asked for the next
  std::optional<LossScaler> scaler;         // fp16
  int64_t buffer_bytes = 0;
  StepTimer timer;

  at::Tensor exchange;  // [Note: exchange] in device/step_facts.h
  at::Tensor told;      // its copy in the host's memory
  Event measured;
  Event copied;
  bool open_step = false;  // the last step is not concluded

  int64_t micro_steps = 0;
  int64_t global_steps = 0;
  int64_t skipped_steps = 0;
  double grad_norm = 0;
  std::string not_finite;  // which gradient of the last optimizer step was infinite or NaN; empty: none
  bool step_applied = false;
  bool has_gradients = false;  // backward ran since the last step()
  bool backward_failed = false;
  int open_scopes = 0;  // GatheredParameters
  int open_no_syncs = 0;
};

}  // namespace zerorun
