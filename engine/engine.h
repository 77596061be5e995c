// ZeroRun from a user's side: initialize() lays a module's parameters into buckets and returns the Engine
// that runs ZeRO on them. One engine a model and rank; used by one thread at a time. The header a newcomer
// reads first.
//
//   auto model = Gpt(options);                                    // any torch::nn::Module
//   auto engine = zerorun::initialize(*model, "ds_config.json");
//   for (auto& batch : loader) {
//     auto loss = model->loss(batch);
//     engine.backward(loss);  // scales, accumulates, reduces while it runs
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
  int64_t master = 0;    // fp32 master weights (none under fp32 training: the parameters are)
  int64_t moments = 0;   // optimizer state
  int64_t buckets = 0;   // in which gradients travel, or are converted for a torch::optim optimizer; those
                         // between files and memory
  int64_t buffers = 0;   // the module's buffers and frozen parameters
  int64_t gathered = 0;  // memory for partitioned parameters around their use
  int64_t on_host = 0;   // not the GPU's memory: what the host keeps for a rank that computes on one
  int64_t in_files = 0;  // not memory: files of offloaded state, with two generations of it

  int64_t model_states() const { return parameters + gradients + master + moments; }
};

/// Of the checkpoint that was saved last: this rank's files.
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

  /// Runs backward on loss / gradient_accumulation_steps (loss itself is not changed) and sends gradients on
  /// their way. Several calls before a step add up. `loss`: a scalar that requires grad. `retain_graph`,
  /// `create_graph` as in LibTorch.
  void backward(const at::Tensor& loss, bool retain_graph = false, bool create_graph = false);

  /// Counts a micro-step; at the accumulation boundary clips, updates, gathers and advances the schedule. A
  /// gradient that is infinite or NaN skips the update on every rank: nothing changes but the loss scale, and
  /// the log names the parameter and the rank. Throws UserError when a backward threw or did not go through
  /// the engine or a parameter has left its bucket, TrainingError on all ranks when the loss scale cannot
  /// fall any further.
  void step();

  /// While it lives, backward() is taken for one that is not the last before an optimizer step: at stages 0
  /// and 1 it sends nothing (if it was the last after all, step() does), at stages 2 and 3 gradients are
  /// added up in this rank's slice as ever. step() is refused. Where the last backward is in a scope
  /// on some ranks only, no rank may start collectives of its own between backward() and step().
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
  /// Every loss is divided by gradient_accumulation_steps as always.
  [[nodiscard]] NoSync no_sync();

  /// Writes all that training needs to go on into `directory`/`tag` (empty: "global_stepN"), as it is at
  /// this call (docs/checkpoint_format.md). Returns while files are being written, with the path that the
  /// checkpoint will have; the next save, load and the engine's end wait for it. A collective, between step()
  /// and the next backward(); among micro-steps (then "global_stepN_microK") the gradients so far are in it.
  /// Ends raw access as step() does. Throws UserError
  /// on all ranks where a rank may not save now. What goes wrong later wait_for_checkpoint() tells; what was
  /// there before stays.
  std::filesystem::path save_checkpoint(const std::filesystem::path& directory, const std::string& tag = {},
                                        const CheckpointOptions& options = {});
  /// Returns when no crash can take the last checkpoint away. Throws UserError on all ranks, which names the
  /// rank, when one of them could not write. Where nobody asks and the last one has failed, run_program()
  /// ends with exit code 1.
  void wait_for_checkpoint();
  CheckpointProgress checkpoint_progress() const;
  /// Takes over what save_checkpoint() of any number of ranks, stage and precision has written (tag empty:
  /// what `latest` names): the same bits where those are the same. A collective, where save_checkpoint() may
  /// be called. Throws UserError on all ranks, naming the parameter, file or block; where that is found while
  /// reading, some parameters are the checkpoint's already: load another one, or end the run.
  RestoredCheckpoint load_checkpoint(const std::filesystem::path& directory, const std::string& tag = {},
                                     const RestoreOptions& options = {});

  /// Moves this rank's optimizer states out of its GPU's memory into the host's, for as long as the program
  /// needs that memory for something else (generating text between updates). Parameters stay: forward passes
  /// run. Until reload_states(), backward(), step(), save_checkpoint() and load_checkpoint() are refused. A
  /// collective, where save_checkpoint() may be called; waits for a checkpoint that is being written, and for
  /// all work of this rank. Page-locked memory of the host is taken once and kept. Ranks on CPUs move nothing
  /// and refuse the same calls.
  void offload_states(const std::vector<OffloadedState>& states = {OffloadedState::moments,
                                                                   OffloadedState::master_weights,
                                                                   OffloadedState::gradients});
  /// Brings back what offload_states() has moved. Where the GPU has no room for it, it may be called again.
  void reload_states();

  /// Where the model's parameters and buffers are: the CPU, or this rank's GPU. Inputs go there too.
  c10::Device device() const;
  /// What parameters are in, and activations with them: float32, bfloat16 or float16.
  at::ScalarType dtype() const;
  /// `input` in the dtype of training where fp16.auto_cast says so and it is floating-point, else as it is.
  at::Tensor cast_input(const at::Tensor& input) const;

  /// Set the module's mode. At stage 3 each mode has a trace of its own by which parameters are gathered;
  /// model.train() and model.eval() do the same.
  void train();
  void eval();

  /// For raw access to parameters at stages 1 and 2, until the next step(): waits for updated ones (on a GPU
  /// the current stream does) and copies those that ranks share. Operators need neither.
  void synchronize();

  /// Whether a rank had been told to end (base/program.h: survive_termination()) when the last optimizer step
  /// agreed on its norm: the same on all ranks, so that all may save a checkpoint of this step and end.
  bool should_stop() const;

  /// True while the micro-step under way ends with an optimizer step.
  bool is_gradient_accumulation_boundary() const;

  // On a GPU step() returns before the device knows what the step comes to, unless the loss scale needs to
  // know. The next step() asks for it; so do the five that follow, which wait for it.

  /// Learning rate of each parameter group, as the next optimizer step will use it.
  std::vector<double> get_lr() const;
  /// Its betas likewise; absent for optimizers that have none.
  std::vector<std::optional<std::pair<double, double>>> get_betas() const;
  /// Norm of the averaged gradients over all parameters and ranks before clipping, of the last optimizer
  /// step, the same number at every stage; 0 before the first, infinity when a gradient was not finite.
  double get_global_grad_norm() const;
  bool was_step_applied() const;  // whether the last step() changed the parameters
  int64_t skipped_steps() const;

  /// The factor that backward() multiplies the next loss with under fp16 training; else 1.
  double loss_scale() const;
  int64_t global_steps() const;  // optimizer steps taken or skipped
  BytesByCategory bytes_by_category() const;
  /// What the ZeRO formula (docs/architecture.md) gives for the model states of this stage and world size, in
  /// bytes.
  double formula_bytes() const;
  ResidencyReport residency() const;

  const Config& config() const;
  Communicator& communicator();

 private:
  friend class GatheredParameters;
  std::shared_ptr<EngineState> state_;  // GatheredParameters scopes keep it too
};

/// Wraps `model` (which must outlive the engine): broadcasts its parameters and buffers from rank 0 to the
/// devices of all ranks and moves the parameters into buckets; the leaves stay the same objects. A model
/// built under a DeferredInit (zero/deferred_init.h) gets its values here, bucket by bucket. Throws
/// UserError.
Engine initialize(torch::nn::Module& model, const Config& config, InitializeOptions options = {});
/// The same with the config read from `ds_config`, where "auto" gets its value from `options` and the model.
Engine initialize(torch::nn::Module& model, const std::filesystem::path& ds_config,
                  InitializeOptions options = {});

}  // namespace zerorun
