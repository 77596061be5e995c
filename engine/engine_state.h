// The state of an Engine, and the parts of an optimizer step. Internal to engine/.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "activations/forward_state.h"
#include "base/memory_report.h"
#include "comm/mesh.h"
#include "engine/data_position.h"
#include "engine/flops_profiler.h"
#include "engine/held_gradients.h"
#include "engine/host_update.h"
#include "engine/model.h"
#include "engine/model_parameters.h"
#include "engine/options.h"
#include "engine/parameter_owners.h"
#include "engine/run_monitor.h"
#include "engine/saving/checkpoint_writer.h"
#include "engine/saving/held_generations.h"
#include "engine/schedules.h"
#include "engine/shard_states.h"
#include "engine/states_on_host.h"
#include "engine/step_outcome.h"
#include "engine/step_progress.h"
#include "engine/step_timer.h"
#include "optim/loss_scaler.h"
#include "optim/shard_optimizer.h"
#include "pipeline/stage.h"
#include "tensor_parallel/tensor_rule.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"
#include "zero/residency.h"
#include "zero/slice_store.h"
#include "zero/stage.h"

namespace zerorun {

class GatherScope;
class MarkedModules;
class Recomputation;
class StepHashes;
struct BytesByCategory;
struct DividedModel;
struct StepRecord;

// Gradients are multiplied by `before` and then summed over ranks; the sum is divided by `after`.
struct Averaging {
  double before;
  double after;
};

/// Throws UserError if the caller runs in a backward (in a hook, for example). There the running backward
/// looks like one that has failed. `call`: the function to name in the error.
void check_outside_backward(const std::string& call);

struct EngineState {
  EngineState(Model model, Config config, Mesh mesh, ModelParameters parameters,
              const InitializeOptions& options);
  ~EngineState();

  /// Throws UserError if another engine has taken a parameter of this one, which therefore neither trains nor
  /// saves any more. To be called before anything else is done with gradients. `call`: the function to name
  /// in the error, such as "engine.step".
  void check_has_parameters(const std::string& call) const;
  /// Throws UserError once a window of the pipeline has failed.
  void check_windows_work(const std::string& call) const;
  /// Throws UserError once an update has failed.
  void check_not_failed(const std::string& call) const;
  /// Throws UserError if the engine has no optimizer.
  void check_trains(const std::string& call) const;
  /// Throws UserError if no backward may begin now. `call`: "engine.backward".
  void check_before_backward(const std::string& call) const;
  /// Throws UserError between offload_states() and reload_states().
  void check_states_are_here(const std::string& call) const;
  /// Throws UserError if nothing can be updated now, for another reason than missing gradients.
  void check_before_update(const std::string& call) const;
  /// Throws UserError if no step() may follow now.
  void check_before_step(const std::string& call) const;
  /// Waits for the outcome of the last step. Throws UserError unless the program may set values of this
  /// parameter group.
  void check_sets_group(int group, const std::string& call);
  /// Throws UserError if there is no such parameter group.
  void check_group(int group, const std::string& call) const;
  /// Throws UserError if the config has no schedule.
  void check_has_schedule(const std::string& call) const;
  /// Throws UserError if the model is divided among pipeline stages.
  void check_not_divided(const std::string& call) const;
  /// Throws UserError if several pipeline stages have the parameter. `call`: what would change only this
  /// stage's.
  void check_not_tied(int parameter, const std::string& call) const;
  /// For the end of a message about a tensor that is none of this engine's parameters.
  std::string why_unknown() const;
  /// The gradient that seeds a backward from `loss`, one of the `micro_steps` of an optimizer step.
  at::Tensor seed_of(const at::Tensor& loss, int64_t micro_steps) const;
  /// Runs autograd and reduces gradients meanwhile. `gradients`: those of the roots.
  void run_backward(const Tensors& roots, const Tensors& gradients, bool retain_graph = false,
                    bool create_graph = false);
  /// Autocast as forwards are to have it.
  AutocastState autocast_state() const;
  /// From now on the config chooses which of the model's marked blocks are recomputed.
  void start_recomputation(bool has_pipeline);
  /// From now on this rank trains by train_batch(). A collective of the pipeline ranks.
  void start_pipeline(DividedModel divided, WholeModel whole, const InitializeOptions& options);
  /// Engine::step().
  void step();
  /// If the last step is still open, waits for its outcome and calls apply_outcome().
  void finish_open_step();
  double loss_scale() const { return scaler ? scaler->scale() : 1; }
  /// Gives the optimizer the schedule's new values, if they are due.
  void follow_schedule() { schedule.follow(progress.counts().applied()); }
  BytesByCategory bytes_by_category() const;
  BytesByUse bytes_by_use() const;
  /// Throws UserError between backward() and step(), in a GatheredParameters scope, after a failure, or if a
  /// parameter has left its bucket. Drops gradients that the program has dropped by the marks in grad(), and
  /// calls follow_failed_backward(). `call`: "engine.save_checkpoint".
  void check_between_steps(const std::string& call);
  /// Throws UserError if data groups may have different parameters, of which the engine does not know how
  /// they make up the model. The same on all ranks.
  void check_knows_parts(const std::string& call) const;
  /// The same as check_between_steps() for calls that are no collectives: leaves gradients as they are.
  void check_no_step_is_open(const std::string& call) const;
  /// Bytes per trained parameter on the device where this rank computes, before division among ranks.
  BytesPerParameter bytes_per_parameter() const;

 private:
  /// Begins a backward that the program starts itself (LibTorch's loss.backward()). Throws UserError.
  BackwardPasses::Start begin_plain_backward();
  /// Throws UserError if a parameter has left its bucket: the program has given it other memory.
  void check_in_place() const;
  /// After the first optimizer step: chooses the blocks to recompute, if they are to keep to a budget.
  void spend_recomputation_budget();
  /// Finishes the reduction and has the device compute the step's outcome: the same bits on every rank and at
  /// every stage.
  void measure();
  /// Sums this rank's slices of gradients over the replicas.
  void sum_over_replicas();
  /// Sums the gradients that ranks outside of the data group have a part of: of parameters that tensor ranks
  /// use on split values, and of those that several pipeline stages have.
  void sum_over_groups();
  void sum_over(Communicator& ranks, int bucket);
  /// For optimizers that turn gradients into directions (Muon): computes the directions and their norm.
  void make_directions();
  /// Whether the host must know the step's outcome before it continues.
  bool waits_for_facts() const;
  void update();
  /// Acts on the last step's outcome, which must be known: updates the loss scale, logs, and marks new values
  /// of the schedule as due. Throws TrainingError.
  void apply_outcome();
  /// Updates the loss scale and logs a skipped step. Throws TrainingError.
  void follow_loss_scale();
  /// Logs what wall_clock_breakdown and memory_breakdown ask for after a step.
  void report_step();
  /// Marks the end of an optimizer step in the timeline, with the bytes of each category.
  void record_end_of_step();
  /// Begins the events of an optimizer step, before measure(). Returns how many samples training has used
  /// with it. `backwards`: of this rank, in the step.
  int64_t begin_step_events(int64_t backwards);
  /// What the run log has of the last optimizer step, besides what `monitor` knows of it.
  StepRecord step_record() const;
  /// Called when another engine takes a parameter: hooks and marks of this one may not disturb it.
  void lose(int parameter);
  /// Called before the program writes to this rank's slice of the bucket. Any thread.
  void before_write(int bucket);
  std::unique_ptr<ShardOptimizer> make_optimizer(const InitializeOptions& options);

 public:
  Model model;
  Config config;
  /// Gradients are averaged over the ranks of mesh.data(), and states are sliced among mesh.shards(). What
  /// all ranks of the job decide or report together (skipped steps, the norm, errors) goes through
  /// mesh.world().
  Mesh mesh;
  bool wrote_gradient = false;  // ParameterStates::write_gradient() since the last step
  bool has_tensor_plan;         // tensor ranks share the model
  StagePolicy policy;
  Averaging averaging;
  MemoryMeter memory;
  std::string optimizer_name;  // "AdamW": of the config's optimizer or of the program's own
  SliceStore store;
  Buckets buckets;
  std::unique_ptr<Residency> residency;           // null if buckets are not marked
  std::shared_ptr<TensorRule> tensor_rule;        // null if no parameter is split among tensor ranks
  std::shared_ptr<Recomputation> recomputation;   // null if no block is recomputed
  std::unique_ptr<MarkedModules> marked_modules;  // likewise
  std::unique_ptr<PipelineStage> stage;           // null if the program gives no list of layers
  WholeModel whole;                               // empty unless the model is divided among pipeline stages
  GradientReducer reducer;
  std::unique_ptr<HostUpdate> host_update;  // null unless the host updates a GPU's parameters
  StatesOnHost states_on_host;
  ShardStates shard_states;
  std::unique_ptr<ShardOptimizer> optimizer;
  ScheduleFollower schedule;
  std::optional<LossScaler> scaler;     // only under fp16 training
  std::vector<NamedTensor> unbucketed;  // buffers, and frozen parameters outside of buckets
  std::vector<NamedTensor> unsaved;     // buffers that no checkpoint has
  StepTimer timer;
  FlopsProfiler flops;
  std::unique_ptr<RunMonitor> monitor;  // always set once the engine is made
  std::unique_ptr<StepHashes> hashes;   // null unless the run log has hashes
  StepOutcome outcome;
  bool open_step = false;  // apply_outcome() has not been called for the last step yet

  StepProgress progress;
  HeldGradients held;
  bool should_stop = false;               // some rank had received SIGTERM by the last optimizer step
  std::atomic<int> scaled_backwards = 0;  // running backwards that began at a loss of scale()
  bool gradients_compared = false;        // check_whole_gradients() has compared them
  std::string pipeline_failure;           // why a window of the pipeline has failed, for good
  bool computes_only = false;             // no optimizer: nothing is trained
  int lost_parameter = -1;                // the first one that another engine has taken; -1: none
  std::vector<GatherScope*> open_scopes;  // of GatheredParameters

  CheckpointWriter checkpoints;          // destroyed before all state that its thread reads
  std::optional<OwnedParameters> owned;  // always set once the engine is made

  std::optional<DataPosition> data = {};  // absent: the program has attached none
  HeldGenerations held_generations;       // its position is `data`
};

/// Engine::train_batch() and Engine::eval_batch().
at::Tensor train_batch(EngineState& state, std::span<const MicroBatch> batches);
at::Tensor eval_batch(EngineState& state, std::span<const MicroBatch> batches);

}  // namespace zerorun
