// What a program gives to initialize() beside the model and the config. Plain values; any thread.
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

/// A set of parameters with their own hyperparameters; what is not given comes from the config's optimizer.
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
  /// The user's own, element-wise, not yet stepped. Outlives the engine; then it is as it was given.
  torch::optim::Optimizer* optimizer = nullptr;
  std::vector<ParameterGroup> parameter_groups;  // default: one group with every parameter that requires grad

  // A schedule of the program's own, where the config has no "scheduler": at most one of the two. A step that
  // is skipped advances neither.

  /// What each optimizer step uses in each parameter group: `[](int64_t step, int group) { return 1e-3; }`,
  /// or a ScheduledValues with betas too. Called once for each step that is applied and each group, in order,
  /// by the thread that uses the engine (in initialize() for step 0). The same on every rank. What it
  /// captures outlives the engine. Where it throws, step() passes that on behind the step that it has
  /// applied, and backward(), step() and get_lr() ask again before they do anything: no step is taken with an
  /// earlier one's values. On a GPU it is the next of these calls that asks.
  Schedule schedule;
  /// A torch::optim one of `optimizer`; outlives the engine, which calls its step() once behind each step
  /// that is applied. One that wants to know a loss (ReduceLROnPlateauScheduler) is the program's to step,
  /// where engine.was_step_applied().
  torch::optim::LRScheduler* lr_scheduler = nullptr;

  std::optional<int64_t> bucket_numel;  // bucket bound in elements, in place of the layout's own choice

  // For the initialize() that reads the file: what "auto" stands for in it.
  Arguments arguments;                 // by key path: {"optimizer.params.lr", 1e-4}
  std::optional<int64_t> hidden_size;  // default: found from the model (engine/hidden_size.h)

  /// Where rank 0 writes the resolved configuration, as ds_config.resolved.json: the folder of the run's
  /// other outputs. It is created if it does not exist; empty: nothing is written.
  std::filesystem::path output_folder;
  bool log_config = false;  // rank 0 logs the config's notes too, not only its warnings
};

struct CheckpointOptions {
  std::string client_state = "null";  // the program's own JSON, which load_checkpoint() gives back; rank 0's
  bool save_latest = true;            // `latest` names this checkpoint from now on
  /// Parameters that are not trained stay out, and are left as they are by load_checkpoint(). Else they are
  /// written once for a run: later checkpoints have the same file by another name (a hard link), unless they
  /// were written to.
  bool exclude_frozen = false;
  /// Of the checkpoints in the folder that are named global_stepN so many stay, those of the highest steps;
  /// 0: all.
  int64_t keep_last = 0;
  /// save_checkpoint() returns while files are being written; else when the checkpoint is published.
  bool asynchronous = true;
};

struct RestoreOptions {
  /// The model's parameters and buffers are exactly those of the checkpoint; else what only one side has is
  /// left as it is.
  bool strict = true;
  bool optimizer_states = true;  // else the optimizer starts anew
  bool counters = true;          // step counts, schedule, loss scale, random generators
};

struct RestoredCheckpoint {
  std::filesystem::path path;
  std::string client_state;  // JSON
};

}  // namespace zerorun
