// The user's interface: initialize() moves a module's parameters into buckets and returns the Engine that
// runs ZeRO on them. One engine per model and rank, used by one thread at a time. Newcomers read this header
// first.
//
//   auto model = Gpt(options);                                    // any torch::nn::Module
//   auto engine = zerorun::initialize(*model, "ds_config.json");
//   for (auto& batch : loader) {
//     auto loss = model->loss(batch);
//     engine.backward(loss);  // scales, accumulates, reduces while it runs (or loss.backward())
//     engine.step();          // at the accumulation boundary: clip, update, gather, schedule
//   }
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "engine/options.h"
#include "zero/residency_report.h"

namespace zerorun {

/// Model-state and buffer bytes that this rank holds, by category.
struct BytesByCategory {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t master = 0;    // fp32 master weights (under fp32 training the parameters are the master weights)
  int64_t moments = 0;   // optimizer state
  int64_t buckets = 0;   // for gradients that travel, for optimizers to work in, and between files and memory
  int64_t buffers = 0;   // the module's buffers and frozen parameters
  int64_t gathered = 0;  // memory for partitioned parameters around their use
  int64_t on_host = 0;   // host memory of a rank that computes on a GPU; not the GPU's memory
  int64_t in_files = 0;  // files of offloaded state, two generations of it; not memory

  int64_t model_states() const { return parameters + gradients + master + moments; }
};

/// This rank's files of the last checkpoint.
struct CheckpointProgress {
  bool is_writing = false;
  int64_t written = 0;  // bytes
  int64_t bytes = 0;
};

struct EngineState;

class Engine {
 public:
  /// For initialize(), which makes the state.
  explicit Engine(std::shared_ptr<EngineState> state);
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  /// Runs backward on loss / gradient_accumulation_steps (loss itself is not changed) and reduces gradients
  /// while it runs. Several calls before a step add up. `loss`: a scalar that requires grad. `retain_graph`,
  /// `create_graph` as in LibTorch.
  void backward(const at::Tensor& loss, bool retain_graph = false, bool create_graph = false);

  // LibTorch's loss.backward() does the same: gradients are divided by gradient_accumulation_steps and
  // reduced while it runs. Under fp16 training call scale(loss).backward(). If a backward throws, the
  // gradients since the last optimizer step are dropped, and training may go on if it threw on all ranks.

  /// `loss` multiplied by the loss scale, for a backward of LibTorch under fp16 training; else `loss` itself.
  at::Tensor scale(const at::Tensor& loss);
  /// Drops the gradients since the last optimizer step, those of earlier micro-steps too; parameters' grad()
  /// is always empty. A collective only if a backward threw.
  void zero_grad();
  /// From now on: whether the next backward is the last one before an optimizer step, and whether step()
  /// updates, whatever gradient_accumulation_steps says. As in DeepSpeed. Throws UserError if the config has
  /// "managed_gradient_accumulation": false, with which every step() updates.
  void set_gradient_accumulation_boundary(bool is_boundary);

  /// Counts a micro-step; at the accumulation boundary clips, updates, gathers and advances the schedule. If
  /// a gradient is infinite or NaN, every rank skips the update: nothing changes but the loss scale, and the
  /// log names the parameter and the rank. Throws UserError if there was no backward or the last one threw,
  /// or a parameter has left its bucket; TrainingError on all ranks if the loss scale cannot fall any
  /// further.
  void step();

  /// While it lives, backward() is not treated as the last one before an optimizer step: at stages 0 and 1 it
  /// sends nothing (if it was the last after all, step() sends), at stages 2 and 3 it adds gradients to this
  /// rank's slice as usual. step() is refused. If the last backward is in such a scope on only some ranks, no
  /// rank may start collectives of its own between backward() and step().
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

  /// Writes everything that is needed to resume training, as it is at this call, into `directory`/`tag`
  /// (empty: "global_stepN"; docs/checkpoint_format.md). Returns the checkpoint's future path while its files
  /// are being written; the next save, the next load and the engine's destructor wait for them. A collective,
  /// between step() and the next backward(); between micro-steps (then "global_stepN_microK") it includes the
  /// gradients so far. Ends raw access as step() does. Throws UserError on all ranks if a rank may not save
  /// now. wait_for_checkpoint() reports later failures; earlier checkpoints then stay.
  std::filesystem::path save_checkpoint(const std::filesystem::path& directory, const std::string& tag = {},
                                        const CheckpointOptions& options = {});
  /// Returns once no crash can lose the last checkpoint. If a rank could not write, throws UserError naming
  /// that rank, on all ranks. If the last checkpoint failed and nobody calls this, run_program() ends with
  /// exit code 1.
  void wait_for_checkpoint();
  CheckpointProgress checkpoint_progress() const;
  /// Restores what save_checkpoint() has written with any number of ranks, stage and precision (tag empty:
  /// the checkpoint that `latest` names); bit for bit if those are the same. A collective, allowed where
  /// save_checkpoint() is, but not between micro-steps. Throws UserError on all ranks, naming the parameter,
  /// file or block; if an error appears during reading, some parameters already have the checkpoint's values:
  /// load another checkpoint, or end the run.
  RestoredCheckpoint load_checkpoint(const std::filesystem::path& directory, const std::string& tag = {},
                                     const RestoreOptions& options = {});

  /// Writes the model's parameters and buffers, in the dtype that the model runs in, to one safetensors file
  /// that Hugging Face's loaders read; an earlier file stays until the new one is complete. Gathers bucket by
  /// bucket, so no rank holds more than one gathered bucket at a time. Tied parameters are written once,
  /// under their first name. A collective, allowed where save_checkpoint() is. Throws UserError on all ranks.
  void save_16bit_model(const std::filesystem::path& directory,
                        const std::string& filename = "model.safetensors", bool exclude_frozen = false);

  /// Moves this rank's optimizer states from its GPU's memory to the host's while the program needs that
  /// memory for something else (generating text between updates). Parameters stay, so forward passes run.
  /// Until reload_states(), backward(), step(), save_checkpoint() and load_checkpoint() are refused. A
  /// collective, allowed where save_checkpoint() is; waits for a checkpoint that is being written and for all
  /// work of this rank. Page-locked host memory is allocated once and kept. Ranks on CPUs move nothing and
  /// refuse the same calls.
  void offload_states(const std::vector<OffloadedState>& states = {OffloadedState::moments,
                                                                   OffloadedState::master_weights,
                                                                   OffloadedState::gradients});
  /// Moves the states back. A collective. Throws on all ranks if the GPU of one has no room for them; call it
  /// again when it has.
  void reload_states();

  /// Where the model's parameters and buffers are: the CPU, or this rank's GPU. Inputs go there too.
  c10::Device device() const;
  /// The dtype of parameters, and so of activations: float32, bfloat16 or float16.
  at::ScalarType dtype() const;
  /// `input` converted to dtype() if fp16.auto_cast is set and it is floating-point, else unchanged.
  at::Tensor cast_input(const at::Tensor& input) const;

  /// Set the module's mode, as model.train() and model.eval() do. At stage 3 each mode has its own trace by
  /// which parameters are gathered.
  void train();
  void eval();

  /// For raw access to parameters at stages 1 and 2, until the next step(): waits for updated parameters (on
  /// a GPU the current stream waits) and makes private copies of those that ranks share. Operators need
  /// neither.
  void synchronize();

  /// Whether any rank had received SIGTERM (base/program.h: survive_termination()) when the ranks reduced
  /// gradients for the last optimizer step. The same on all ranks, so that all can save a checkpoint of this
  /// step and end.
  bool should_stop() const;

  /// Whether the next step() updates.
  bool is_gradient_accumulation_boundary() const;

  // On a GPU step() may return before the device knows the step's outcome, unless the loss scale, the
  // optimizer or an update on the host needs it. The next step() and the five functions that follow wait for
  // it.

  /// Learning rate of each parameter group in the next optimizer step.
  std::vector<double> get_lr() const;
  /// Likewise its betas; absent for optimizers that have none.
  std::vector<std::optional<std::pair<double, double>>> get_betas() const;
  /// Norm of the averaged gradients over all parameters and ranks before clipping, in the last optimizer step
  /// (under Muon of the directions it makes of them). The same at every stage; 0 before the first step,
  /// infinity if a gradient was not finite.
  double get_global_grad_norm() const;
  bool was_step_applied() const;  // whether the last step() changed the parameters
  int64_t skipped_steps() const;

  /// The factor by which backward() multiplies the next loss under fp16 training; else 1.
  double loss_scale() const;
  int64_t global_steps() const;  // optimizer steps taken or skipped
  BytesByCategory bytes_by_category() const;
  /// Bytes of model states by the ZeRO formula (docs/architecture.md) for this stage and world size.
  double formula_bytes() const;
  ResidencyReport residency() const;

  const Config& config() const;
  Communicator& communicator();

 private:
  friend class GatheredParameters;
  std::shared_ptr<EngineState> state_;  // shared with GatheredParameters scopes
};

/// Wraps `model` (which must outlive the engine): broadcasts its parameters and buffers from rank 0 to the
/// devices of all ranks and moves the parameters into buckets; the leaves stay the same objects. A model
/// built under a DeferredInit (zero/deferred_init.h) gets its values here, bucket by bucket. Throws
/// UserError.
Engine initialize(torch::nn::Module& model, const Config& config, InitializeOptions options = {});
/// The same with the config read from `ds_config`; `options` and the model supply the values of "auto".
Engine initialize(torch::nn::Module& model, const std::filesystem::path& ds_config,
                  InitializeOptions options = {});

}  // namespace zerorun
