// The state of an Engine, and the parts of an optimizer step. Internal to engine/.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/backward_passes.h"
#include "engine/checkpoint_writer.h"
#include "engine/gradient_marks.h"
#include "engine/host_update.h"
#include "engine/model.h"
#include "engine/model_parameters.h"
#include "engine/options.h"
#include "engine/schedules.h"
#include "engine/shard_states.h"
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

class GatherScope;

// Gradients are multiplied by `before` and then summed over ranks; the sum is divided by `after`.
struct Averaging {
  double before;
  double after;
};

struct StepCounts {
  int64_t micro = 0;   // micro-steps since the last optimizer step
  int64_t global = 0;  // optimizer steps taken or skipped
  int64_t skipped = 0;
  int64_t applied() const { return global - skipped; }
};

// Which backwards of the window the gradients are from. A backward that a rank does not know of (it threw
// before the first gradient, or the forward threw) is missing in `before`, but `after` is equal on all ranks
// that have dropped their gradients in the same place.
struct HeldSince {
  bool dropped = false;    // gradients of the window have been dropped, the last time in this place:
  int64_t micro_step = 0;  // in this micro-step,
  int64_t before = 0;      // after so many of its backwards,
  int64_t after = 0;       // and before so many of them
};

/// Throws UserError if the caller runs in a backward (in a hook, for example). There the running backward
/// looks like one that has failed. `call`: the function to name in the error.
void check_outside_backward(const std::string& call);

struct EngineState {
  EngineState(Model model, Config config, std::shared_ptr<Communicator> communicator,
              ModelParameters parameters, const InitializeOptions& options);
  ~EngineState();

  /// Throws UserError once an update has failed. `call`: the function to name in the error, such as
  /// "engine.step".
  void check_not_failed(const std::string& call) const;
  /// Throws UserError if the engine has no optimizer.
  void check_trains(const std::string& call) const;
  /// Throws UserError if no backward may begin now. `call`: "engine.backward".
  void check_before_backward(const std::string& call) const;
  /// Begins a backward that the program starts itself (LibTorch's loss.backward()). Throws UserError.
  BackwardPasses::Start begin_plain_backward();
  /// Whether the program has declared the next backward the last one before an optimizer step.
  bool is_declared_last() const;
  /// Whether the next backward is the last one before an optimizer step, as far as is known.
  bool is_last_backward() const;
  /// Whether step() updates.
  bool step_updates() const;
  /// Drops all gradients since the last optimizer step. The step comes after as many micro-steps as without
  /// this.
  void discard_gradients();
  /// The same, if there are gradients: the program drops them. Warns once if those of earlier micro-steps are
  /// among them.
  void drop_gradients();
  /// To be called before gradients are dropped that other ranks may keep.
  void count_drop();
  /// What the other ranks are to know of `held_since`.
  WindowNotice window_notice() const;
  /// Calls drop_gradients() if the program has dropped gradients by the marks in grad(). Throws UserError if
  /// it has dropped some of them, or set one. `call`: the function to name in the error.
  void follow_marks(const std::string& call);
  /// To be called after each backward: the engine holds gradients now. Marks them, if they are to be marked.
  void note_backward();
  /// Whether the last backward threw and its gradients are not dropped yet. Also true while one runs.
  bool has_failed_backward() const { return backward_failed || passes.failed(); }
  /// Drops all gradients since the last optimizer step if the last backward threw.
  void drop_failed_backward();
  /// To be called before anything else is done with gradients. If the last backward threw, its gradients are
  /// dropped, as if it had not begun. If they have been added to those of earlier backwards, they cannot be:
  /// throws UserError, unless the program has dropped all of them. Runs the reductions for which other ranks
  /// wait, so no other collective may come before. `call`: the function to name in the error.
  void follow_failed_backward(const std::string& call);
  /// Throws UserError between offload_states() and reload_states().
  void check_states_are_here(const std::string& call) const;
  /// Throws UserError if no step() may follow now. `call`: the function to name in the error, such as
  /// "engine.step".
  void check_before_step(const std::string& call) const;
  /// Waits for the outcome of the last step. Throws UserError unless the program may set values of this
  /// parameter group.
  void check_sets_group(int group, const std::string& call);
  /// Throws UserError if there is no such parameter group.
  void check_group(int group, const std::string& call) const;
  /// Throws UserError if a parameter has left its bucket: the program has given it other memory.
  void check_in_place() const;
  /// Finishes the reduction and has the device compute the step's outcome: the same bits on every rank and at
  /// every stage.
  void measure();
  /// For optimizers that turn gradients into directions (Muon): computes the directions and their norm.
  void make_directions();
  /// Whether the host must know the step's outcome before it continues.
  bool waits_for_facts() const;
  void update();
  /// Acts on the last step's outcome, which must be known: updates the loss scale, logs, and marks new values
  /// of the schedule as due. Throws TrainingError.
  void apply_outcome();
  /// If the last step is still open, waits for its outcome and calls apply_outcome().
  void finish_open_step();
  double loss_scale() const { return scaler ? scaler->scale() : 1; }
  /// Gives the optimizer the schedule's new values, if they are due.
  void follow_schedule() { schedule.follow(counts.applied()); }
  /// Updates the loss scale and logs a skipped step. Throws TrainingError.
  void follow_loss_scale();
  void report_time();
  /// Called before the program writes to this rank's slice of the bucket. Any thread.
  void before_write(int bucket);
  /// Throws UserError between backward() and step(), in a GatheredParameters scope, after a failure, or if a
  /// parameter has left its bucket. Drops gradients that the program has dropped by the marks in grad(), and
  /// calls follow_failed_backward(). `call`: "engine.save_checkpoint".
  void check_between_steps(const std::string& call);
  /// The same for calls that are no collectives: leaves gradients as they are.
  void check_no_step_is_open(const std::string& call) const;
  /// Bytes per trained parameter on the device where this rank computes, before division among ranks.
  BytesPerParameter bytes_per_parameter() const;

  std::unique_ptr<ShardOptimizer> make_optimizer(const InitializeOptions& options);

  Model model;
  Config config;
  std::shared_ptr<Communicator> communicator;
  StagePolicy policy;
  Averaging averaging;
  std::string optimizer_name;  // "AdamW": of the config's optimizer or of the program's own
  SliceStore store;
  Buckets buckets;
  std::unique_ptr<Residency> residency;  // null if buckets are not marked
  GradientReducer reducer;
  std::unique_ptr<HostUpdate> host_update;  // null unless the host updates a GPU's parameters
  StatesOnHost states_on_host;
  ShardStates shard_states;
  std::unique_ptr<ShardOptimizer> optimizer;
  ScheduleFollower schedule;
  std::optional<LossScaler> scaler;     // only under fp16 training
  std::vector<NamedTensor> unbucketed;  // buffers, and frozen parameters outside of buckets
  StepTimer timer;
  StepOutcome outcome;
  bool open_step = false;  // apply_outcome() has not been called for the last step yet

  StepCounts counts;
  HeldSince held_since;
  bool should_stop = false;      // some rank had received SIGTERM by the last optimizer step
  int64_t backwards = 0;         // number of backwards since the last step()
  bool backward_failed = false;  // engine.backward() threw, and its gradients are not dropped yet
  bool holds_gradients = false;  // of a backward since the last optimizer step
  std::string why_dropped;       // for messages: what has dropped gradients since the last step()
  bool warned_of_drops = false;
  std::atomic<int> scaled_backwards = 0;  // running backwards that began at a loss of scale()
  bool had_last_backward = false;  // a backward since the last step() was declared the last before a step
  bool computes_only = false;      // no optimizer: nothing is trained
  std::optional<bool> boundary;    // set by set_gradient_accumulation_boundary()
  BackwardPasses passes;
  std::unique_ptr<GradientMarks> marks;  // null unless gradients are marked
  bool is_updating = false;              // an update has begun and not ended; stays true if it throws
  int open_scopes = 0;                   // number of open GatheredParameters scopes
  int open_no_syncs = 0;
  /// Of the open scopes, those whose writes this rank undoes itself if they are abandoned.
  std::vector<GatherScope*> keeping_scopes;

  CheckpointWriter checkpoints;  // last member, so destroyed first: its thread reads the other members
};

}  // namespace zerorun
