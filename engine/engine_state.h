// What an Engine is made of, and the parts of an optimizer step. Internal to engine/.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint_writer.h"
#include "engine/host_update.h"
#include "engine/model_parameters.h"
#include "engine/offload.h"
#include "engine/options.h"
#include "engine/schedules.h"
#include "engine/states_on_host.h"
#include "engine/step_outcome.h"
#include "engine/step_timer.h"
#include "optim/loss_scaler.h"
#include "optim/shard_optimizer.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"
#include "zero/residency.h"
#include "zero/slice_store.h"
#include "zero/stage.h"

namespace zerorun {

// Gradients are multiplied by `before` on their way into the sum over ranks, divided by `after` behind it.
struct Averaging {
  double before;
  double after;
};

struct StepCounts {
  int64_t micro = 0;
  int64_t global = 0;  // optimizer steps taken or skipped
  int64_t skipped = 0;
  int64_t applied() const { return global - skipped; }
};

struct EngineState {
  EngineState(torch::nn::Module& model, Config config, std::shared_ptr<Communicator> communicator,
              ModelParameters parameters, const InitializeOptions& options);
  ~EngineState();

  /// Throws UserError once a backward or an update has failed. `call`: "step".
  void check_not_failed(const std::string& call) const;
  /// Throws UserError between offload_states() and reload_states().
  void check_states_are_here(const std::string& call) const;
  void check_before_step() const;
  /// Throws UserError for a parameter that has left its bucket.
  void check_in_place() const;
  /// Ends the reduction and has the device work out what the step comes to, the same bits on every rank and
  /// at every stage.
  void measure();
  /// For optimizers that do not apply gradients as they are: makes what they apply, and measures that.
  void make_directions();
  /// Whether the host must know what the step comes to before it goes on.
  bool waits_for_facts() const;
  void update();
  /// What follows from the last step once it is known: the loss scale, what is logged, that the schedule is
  /// to be asked. Throws TrainingError.
  void conclude();
  /// Learns and concludes the last step, where that is still open.
  void settle();
  double loss_scale() const { return scaler ? scaler->scale() : 1; }
  /// Has the optimizer use what the schedule says, where that is still to be done.
  void follow_schedule() { schedule.follow(counts.applied()); }
  /// Tells of a skipped step and moves the loss scale. Throws TrainingError.
  void follow_loss_scale();
  void report_time();
  /// The program is about to write to this rank's slice of the bucket. Any thread.
  void before_write(int bucket);
  /// Throws UserError unless the last call was step(), or none. `call`: "save_checkpoint".
  void check_between_steps(const std::string& call) const;
  /// Micro-steps since the last optimizer step.
  int64_t micro_steps_of_window() const { return counts.micro % config.batch.gradient_accumulation_steps; }
  /// Of what the store keeps, per trained parameter, before anything is divided among ranks.
  BytesPerParameter bytes_per_parameter() const;

  std::vector<Shard> make_shards();
  /// Of `rank`'s slice of the bucket.
  Shard make_shard(int bucket, int rank, int chunk);
  at::Tensor lend_moment(const Shard& shard, const char* name);
  std::unique_ptr<ShardOptimizer> make_optimizer(const InitializeOptions& options);

  torch::nn::Module* model;
  Config config;
  std::shared_ptr<Communicator> communicator;
  StagePolicy policy;
  Averaging averaging;
  std::string optimizer_name;  // "AdamW", be it the config's or the program's
  SliceStore store;
  Buckets buckets;
  std::unique_ptr<Residency> residency;  // of marked buckets
  GradientReducer reducer;
  std::unique_ptr<HostUpdate> host_update;  // where the host updates what is on a GPU
  StatesOnHost states_on_host;
  ShardStates shard_states;
  std::vector<int> shard_bucket;      // the bucket of each of the optimizer's shards
  std::vector<int> shards_of_bucket;  // how many each has
  std::vector<int> shards_to_update;  // of these in the update that is going on
  std::unique_ptr<ShardOptimizer> optimizer;
  ScheduleFollower schedule;
  std::optional<LossScaler> scaler;  // fp16
  std::vector<NamedTensor> others;   // buffers and frozen parameters outside of buckets
  StepTimer timer;
  StepOutcome outcome;
  bool open_step = false;  // the last step is not concluded

  StepCounts counts;
  bool should_stop = false;    // a rank was told to end, as of the last optimizer step
  bool has_gradients = false;  // backward ran since the last step()
  bool backward_failed = false;
  bool is_updating = false;  // an update has begun and not ended
  int open_scopes = 0;       // GatheredParameters
  int open_no_syncs = 0;

  CheckpointWriter checkpoints;  // ends before what it reads
};

}  // namespace zerorun
