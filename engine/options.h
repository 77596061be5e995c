// Options of initialize(), of checkpoints and of offload_states(). Plain values; any thread.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "optim/schedule.h"

namespace zerorun {

/// Parameters with hyperparameters of their own; what is not set comes from the config's optimizer.
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<std::pair<double, double>> betas;
  std::optional<double> eps = {};
};

/// What Engine::offload_states() moves (in DeepSpeed optim_states, hp_params, lp_grads).
enum class OffloadedState { moments, master_weights, gradients };

struct InitializeOptions {
  std::shared_ptr<Communicator> communicator;  // default: connect() by the environment
  /// The program's own optimizer: element-wise, not stepped before. Outlives the engine, whose destructor
  /// gives it back its parameters and its state (not its learning rates and betas).
  torch::optim::Optimizer* optimizer = nullptr;
  std::vector<ParameterGroup> parameter_groups;  // default: one group with every parameter that requires grad

  // A schedule of the program's own, at most one of the two, and only if the config has no "scheduler". A
  // skipped step advances neither.

  /// Each step's values by parameter group: `[](int64_t step, int group) { return 1e-3; }`, or a
  /// ScheduledValues to set betas too. Called once for each applied step and each group, in order, by the
  /// thread that uses the engine (in initialize() for step 0). Must return the same on every rank. What it
  /// captures outlives the engine. If it throws, step() passes the exception on after it has applied the
  /// step, and backward(), step() and get_lr() call it again before anything else, so that no step uses the
  /// values of an earlier one. On a GPU the first of these calls that knows the step's outcome calls it.
  Schedule schedule;
  /// A torch::optim scheduler of `optimizer`. Outlives the engine, which calls its step() once after each
  /// applied step. A scheduler that needs a loss (ReduceLROnPlateauScheduler) is for the program to step, if
  /// engine.was_step_applied().
  torch::optim::LRScheduler* lr_scheduler = nullptr;

  std::optional<int64_t> bucket_numel;  // upper bound of a bucket in elements; default: the layout chooses

  // For the initialize() that reads the file: the values of its "auto" settings.
  Arguments arguments;                 // by key path: {"optimizer.params.lr", 1e-4}
  std::optional<int64_t> hidden_size;  // default: found from the model (engine/hidden_size.h)

  /// The run's output folder, in which rank 0 writes the resolved configuration, ds_config.resolved.json. It
  /// is created if it does not exist; empty: nothing is written.
  std::filesystem::path output_folder;
  bool log_config = false;  // rank 0 logs the config's notes too, not only its warnings
};

struct CheckpointOptions {
  std::string client_state = "null";  // rank 0's: the program's own JSON, which load_checkpoint() returns
  bool save_latest = true;            // `latest` names this checkpoint from now on
  /// Leaves out parameters that are not trained; load_checkpoint() then does not change them. If false, they
  /// are written once per run: later checkpoints hard-link the same file, unless the program has written to
  /// them.
  bool exclude_frozen = false;
  /// Deletes the folder's checkpoints named global_stepN except this many with the highest steps; 0: keeps
  /// all.
  int64_t keep_last = 0;
  /// save_checkpoint() returns while files are being written; if false, when the checkpoint is published.
  bool asynchronous = true;
};

struct RestoreOptions {
  /// The model must have exactly the checkpoint's parameters and buffers; if false, what only one side has
  /// stays as it is.
  bool strict = true;
  bool optimizer_states = true;  // if false, the optimizer starts anew
  bool counters = true;          // step counts, schedule, loss scale, random generators
};

struct RestoredCheckpoint {
  std::filesystem::path path;
  std::string client_state;  // JSON
};

}  // namespace zerorun
