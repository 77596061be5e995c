// The user's interface: initialize() moves a module's parameters into buckets and returns the Engine that
// runs ZeRO on them. One engine per model and rank, used by one thread at a time. Newcomers read this header
// first.
//
//   auto model = Gpt(options);                                    // any torch::nn::Module
//   auto engine = zerorun::initialize(*model, "ds_config.json");
//   for (auto& batch : loader) {
//     auto loss = model->loss(batch);
//     engine.backward(loss);  // scales, accumulates and reduces gradients (or: loss.backward())
//     engine.step();          // at the accumulation boundary: clips, updates, gathers, advances the schedule
//   }
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "activations/forward_state.h"
#include "comm/mesh.h"
#include "config/config.h"
#include "engine/data_position.h"
#include "engine/model.h"
#include "engine/options.h"
#include "zero/residency_report.h"

namespace zerorun {

/// Model-state and buffer bytes that this rank holds, by category.
struct BytesByCategory {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t master = 0;    // fp32 master weights (under fp32 training the parameters are the master weights)
  int64_t moments = 0;   // optimizer state
  int64_t buckets = 0;   // buffers for sending gradients, for optimizers, and between files and memory
  int64_t buffers = 0;   // the module's own buffers and frozen parameters
  int64_t gathered = 0;  // memory of partitioned parameters while they are in use
  int64_t on_host = 0;   // host memory of a rank that computes on a GPU; not the GPU's memory
  /// The size of the files of offloaded state, which hold two generations, and of recomputed blocks' inputs.
  int64_t in_files = 0;

  int64_t model_states() const { return parameters + gradients + master + moments; }
};

/// The progress of writing this rank's files of the last checkpoint.
struct CheckpointProgress {
  bool is_writing = false;
  int64_t written = 0;  // bytes so far
  int64_t bytes = 0;    // bytes in total
};

struct EngineState;

/// Owns an engine's state, together with other handles. Every use of an empty one, whose engine has been
/// moved from, throws UserError.
class EngineStateHandle {
 public:
  explicit EngineStateHandle(std::shared_ptr<EngineState> state) : state_(std::move(state)) {}
  EngineState& operator*() const { return *get(); }
  EngineState* operator->() const { return get().get(); }
  operator const std::shared_ptr<EngineState>&() const { return get(); }

 private:
  const std::shared_ptr<EngineState>& get() const;

  std::shared_ptr<EngineState> state_;
};

class Engine {
 public:
  /// Called by initialize(), which makes `state`.
  explicit Engine(std::shared_ptr<EngineState> state);
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  /// Runs backward on loss / gradient_accumulation_steps (`loss` itself is not changed) and reduces gradients
  /// meanwhile. The gradients of several calls before a step are summed. `loss`: a scalar that requires grad.
  /// `retain_graph`, `create_graph`: as in LibTorch.
  void backward(const at::Tensor& loss, bool retain_graph = false, bool create_graph = false);

  // LibTorch's loss.backward() has the same effect: gradients are divided by gradient_accumulation_steps and
  // reduced meanwhile. Under fp16 training call scale(loss).backward(). If a backward throws on
  // all ranks in the same place, its gradients are dropped, as if it had not begun, and training may
  // continue. If they have been added to those of earlier backwards of the optimizer step, the next call
  // throws UserError until zero_grad().

  /// Returns the loss for LibTorch's backward: `loss` times the loss scale under fp16 training, else `loss`
  /// itself.
  at::Tensor scale(const at::Tensor& loss);
  /// Drops the gradients since the last optimizer step; when the next one comes does not change.
  /// model.zero_grad() does this only with `marks_gradients`. A collective only if a backward threw.
  void zero_grad();
  /// From now on `is_boundary` instead of gradient_accumulation_steps decides whether the next backward is
  /// the last one before an optimizer step and whether step() updates, as in DeepSpeed. Throws UserError if
  /// the config has "managed_gradient_accumulation": false, because then every step() updates.
  void set_gradient_accumulation_boundary(bool is_boundary);

  /// Counts a micro-step. At the accumulation boundary clips gradients, updates and gathers parameters, and
  /// advances the schedule. If a gradient is infinite or NaN, every rank skips the update: only the loss
  /// scale changes, and the log names the parameter and the rank. Throws UserError if there was no backward,
  /// if the last backward threw, or if a parameter has left its bucket; throws TrainingError on all ranks if
  /// the loss scale cannot be lowered any further.
  void step();

  // With a list of layers (InitializeOptions::pipeline) the two functions below take the place of backward()
  // and step() (docs/pipeline.md). All ranks pass the same number of micro-batches. If one throws on a rank,
  // it throws on all ranks that take part, and the run must end.

  /// Runs the forwards and backwards of all micro-batches through the pipeline, and the optimizer step that
  /// ends them. Gradients are averaged over the micro-batches and data ranks. `batches`: usually
  /// gradient_accumulation_steps of them. Returns the mean loss over the micro-batches and data ranks, the
  /// same on every rank: a float64 scalar on device(). Sets the model to training mode.
  at::Tensor train_batch(std::span<const MicroBatch> batches);
  /// Returns the mean loss likewise, in evaluation mode and without gradients. Afterwards the model is in the
  /// mode in which it was.
  at::Tensor eval_batch(std::span<const MicroBatch> batches);

  /// A scope in which no backward() counts as the last one before an optimizer step. At stages 0 and 1 a
  /// backward() in the scope sends no gradients; if no other backward() follows the scope, step() sends them.
  /// At stages 2 and 3 a backward() in the scope adds gradients to this rank's slice as usual. Within the
  /// scope step() throws UserError. If the last backward is in such a scope on only some ranks, no rank may
  /// start collectives of its own between backward() and step().
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<EngineState> state);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<EngineState> state_;
  };
  /// For programs that call backward() several times before a step: {auto scope = engine.no_sync(); ...}.
  /// Every loss is still divided by gradient_accumulation_steps.
  [[nodiscard]] NoSync no_sync();

  /// Saves all that is needed to resume training, as of this call, to `directory`/`tag` (default tag:
  /// "global_stepN"; docs/checkpoint_format.md). Returns the checkpoint's path before its files are written;
  /// the next save, the next load and the engine's destructor wait for the files. A collective, between
  /// step() and the next backward(). Between micro-steps (default tag "global_stepN_microK") a save includes
  /// the gradients so far. Ends raw access as step() does. Throws UserError on all ranks if a rank may not
  /// save now. wait_for_checkpoint() reports a failure to write the files; earlier checkpoints then remain.
  std::filesystem::path save_checkpoint(const std::filesystem::path& directory, const std::string& tag = {},
                                        const CheckpointOptions& options = {});
  /// Waits until the last checkpoint is published, so that no crash can lose it. If a rank could not write,
  /// throws UserError on all ranks, naming that rank. If the last checkpoint failed and the program does not
  /// call this function, run_program() returns exit code 1.
  void wait_for_checkpoint();
  CheckpointProgress checkpoint_progress() const;
  /// Restores a checkpoint that save_checkpoint() wrote with any number of ranks, stage and precision. The
  /// restored state is bit-identical to the saved state if all three are the same now, except that 16-bit
  /// values come from master weights that ParameterStates has written. If `tag` is empty, restores the
  /// checkpoint that `latest` names. A collective, allowed where save_checkpoint() is, but not between
  /// micro-steps. Throws UserError on all ranks, naming the parameter, file or block. After an error during
  /// reading some parameters already have the checkpoint's values: load another checkpoint, or end the run.
  RestoredCheckpoint load_checkpoint(const std::filesystem::path& directory, const std::string& tag = {},
                                     const RestoreOptions& options = {});
  /// Restores the checkpoint of `directory` that was saved last and is whole on all ranks; absent if there is
  /// no checkpoint, so that the first start of a program and every later one can call this. A newer
  /// checkpoint that is damaged is passed over on all ranks before anything of it is restored, and the log
  /// warns and names the file. Reads each file once more, divided among ranks. A collective, as
  /// load_checkpoint(), and throws as it does; also throws UserError if there are checkpoints and all are
  /// damaged. Under `zerorun --hold_every` a newer generation in memory takes the place of a checkpoint, and
  /// the engine holds generations from now on (docs/restarts.md).
  std::optional<RestoredCheckpoint> load_newest(const std::filesystem::path& directory,
                                                const RestoreOptions& options = {});
  /// Whether this rank holds generations in memory. A restart may begin right behind a step, so then what the
  /// program writes about it must be written before DataPosition::advance(), or step() without one. The same
  /// on all ranks after load_newest(); later a rank whose copy fails holds none any more.
  bool holds_generations() const;
  /// Holds the state in memory now, if a step that is to be held has ended since the last call. For programs
  /// with RestoreOptions::holds_when_asked: to be called on all ranks after each step(). Does nothing if no
  /// generations are held.
  void hold_generation();
  /// From now on checkpoints have this position, and loading one restores it (if the checkpoint has one, and
  /// RestoreOptions::counters is true). Divides micro-batches among mesh().data(). All ranks must call it
  /// alike.
  void attach(const DataPosition& position);

  /// Writes the model's parameters and buffers, in the dtype that the model runs in, to one safetensors file
  /// that Hugging Face's loaders read; an earlier file stays until the new one is complete. Gathers bucket by
  /// bucket, so no rank holds more than one gathered bucket at a time. Tied parameters are written once,
  /// under their first name. A collective, allowed where save_checkpoint() is. Throws UserError on all ranks.
  void save_16bit_model(const std::filesystem::path& directory,
                        const std::string& filename = "model.safetensors", bool exclude_frozen = false);

  /// Moves this rank's optimizer states from GPU memory to host memory while the program needs the GPU memory
  /// for something else (generating text between updates). Parameters stay, so forward passes still run.
  /// Until reload_states(), the functions backward(), step(), save_checkpoint() and load_checkpoint() throw
  /// UserError. A collective, allowed where save_checkpoint() is; waits for a checkpoint that is being
  /// written and for all work of this rank. Page-locked host memory is allocated once and kept. On CPU ranks
  /// nothing moves, but the same functions throw.
  void offload_states(const std::vector<OffloadedState>& states = {OffloadedState::moments,
                                                                   OffloadedState::master_weights,
                                                                   OffloadedState::gradients});
  /// Moves the states back. A collective. Throws on all ranks if the GPU of one rank has too little free
  /// memory; may be called again once that GPU has enough.
  void reload_states();

  /// The device of the model's parameters and buffers: the CPU, or this rank's GPU. Move inputs to it.
  c10::Device device() const;
  /// The dtype of parameters, and so of activations: float32, bfloat16 or float16.
  at::ScalarType dtype() const;
  /// `input` converted to dtype() if fp16.auto_cast is set and `input` is floating-point, else unchanged.
  at::Tensor cast_input(const at::Tensor& input) const;

  /// As long as the returned object lives, operators of this thread run under autocast in bf16, if the config
  /// has torch_autocast. Only forwards and losses may run meanwhile. Pipelines need no such object.
  /// Autocast's copies of partitioned parameters are not kept until backward, but made again (residency()).
  [[nodiscard]] AutocastScope autocast() const;

  /// Set the module's mode, as model.train() and model.eval() do. At stage 3 parameters are gathered in the
  /// order in which an earlier iteration of the same mode used them.
  void train();
  void eval();

  /// Allows raw access to parameters at stages 1 and 2: waits for updated parameters (on a GPU the current
  /// stream waits), and makes private copies of parameters that ranks share. This lasts until the next
  /// step(), save_checkpoint(), load_checkpoint() or end of a GatheredParameters scope with a modifier rank;
  /// addresses taken before are invalid then. LibTorch's operators do not need this call.
  void synchronize();

  /// Writes a value of the program to all monitors of the config (docs/monitoring.md), at global_samples().
  /// `tag`: such as "eval/loss". `value` may be infinite or NaN. All ranks may call it, and that of rank 0 is
  /// written. If a file cannot be written, the log warns once. Throws UserError if the tag is empty, longer
  /// than 200 bytes, or has control characters.
  void log(const std::string& tag, double value);
  /// Samples of all ranks in the optimizer steps so far: gradient_accumulation_steps micro-batches a step.
  /// After load_checkpoint() as if all earlier steps had been such, unless the program knows better.
  int64_t global_samples() const;
  void set_global_samples(int64_t samples);
  /// Tells the run log how many tokens the ranks train on together in an optimizer step, so that reports show
  /// tokens per second. LiveLine does so too.
  void set_tokens_per_step(int64_t tokens);
  /// If comms_logger is enabled, logs a table of rank 0's collectives so far, and returns it there. Else, and
  /// on other ranks, returns an empty text.
  std::string log_communication() const;

  /// Whether any rank of the job had received SIGTERM (base/program.h: survive_termination()) when the ranks
  /// reduced gradients for the last optimizer step. The same on all ranks, so that all can save a checkpoint
  /// of this step and end.
  bool should_stop() const;

  /// Whether the next step() updates.
  bool is_gradient_accumulation_boundary() const;

  // On a GPU step() may return before the GPU has computed the step's outcome, unless the loss scale, the
  // optimizer or an update on the host needs the outcome. The next step() and the functions below, up to
  // skipped_steps(), wait for the outcome.

  /// Learning rate of each parameter group in the next optimizer step.
  std::vector<double> get_lr() const;
  /// Betas of each parameter group in the next optimizer step; absent if the optimizer has no betas.
  std::vector<std::optional<std::pair<double, double>>> get_betas() const;
  /// Set the learning rate or the betas of a parameter group, beginning with the next optimizer step. All
  /// ranks must set the same values. A checkpoint restores them. Throw UserError if the config or the options
  /// name a schedule, or if the optimizer has no betas.
  void set_lr(int group, double lr);
  void set_betas(int group, std::pair<double, double> betas);
  /// Takes the config's schedule away from step(): rates and betas stay as they are now, and the program sets
  /// them, by the two functions above, or to what the schedule has after `applied_steps` applied steps. All
  /// ranks must call these alike. A checkpoint restores the values. Throw UserError if the config has no
  /// schedule; set_scheduled() also before release_schedule().
  void release_schedule();
  void set_scheduled(int64_t applied_steps);
  /// Sets the weight decay of a parameter group, beginning with the next optimizer step. All ranks must set
  /// the same value. A checkpoint does not restore it. May also be called in a run with a schedule.
  void set_weight_decay(int group, double weight_decay);
  /// Norm of the averaged gradients over all parameters and ranks before clipping, in the last optimizer step
  /// (under Muon the norm of its directions instead). The same at every stage; 0 before the first step,
  /// infinity if a gradient was not finite.
  double get_global_grad_norm() const;
  bool was_step_applied() const;  // whether the last step() changed the parameters
  int64_t skipped_steps() const;

  /// The factor by which backward() multiplies the next loss under fp16 training; else 1.
  double loss_scale() const;
  int64_t backwards() const;     // since the last step(): those that have reached a parameter
  int64_t global_steps() const;  // optimizer steps taken or skipped
  BytesByCategory bytes_by_category() const;
  /// Bytes of model states by the ZeRO formula (docs/architecture.md) for this stage and world size.
  double formula_bytes() const;
  ResidencyReport residency() const;

  const Config& config() const;
  /// Of all ranks of the job.
  Communicator& communicator();
  /// Which ranks of the job are which. Gradients are averaged over mesh().data(): give each of its ranks
  /// other samples.
  const Mesh& mesh() const;

 private:
  friend class GatherScope;
  friend class LiveLine;
  friend class ParameterStates;
  friend class RecomputedModules;
  friend void verify_plan(Engine& engine, const Model& whole,
                          const std::function<at::Tensor()>& loss_of_whole,
                          const std::function<at::Tensor()>& loss, double tolerance);
  friend at::Tensor vocab_parallel_cross_entropy(Engine& engine, const at::Tensor& weight,
                                                 const at::Tensor& logits, const at::Tensor& targets,
                                                 int64_t ignored);
  EngineStateHandle state_;  // also owned by GatheredParameters scopes
};

/// Wraps a model: broadcasts its parameters and buffers from rank 0 to the devices of all ranks and moves the
/// parameters into buckets; their tensors stay the same objects. A model built under a DeferredInit
/// (zero/deferred_init.h) gets its values here, bucket by bucket. Throws UserError if the config, the options
/// or the model cannot be used.
Engine initialize(Model model, const Config& config, InitializeOptions options = {});
/// The same with the config read from `ds_config`; `options` and the model supply values for "auto" settings.
Engine initialize(Model model, const std::filesystem::path& ds_config, InitializeOptions options = {});
/// The same for a module (model_of() in engine/model.h). `model` must outlive the engine.
Engine initialize(torch::nn::Module& model, const Config& config, InitializeOptions options = {});
Engine initialize(torch::nn::Module& model, const std::filesystem::path& ds_config,
                  InitializeOptions options = {});

}  // namespace zerorun
