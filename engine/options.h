// Options of initialize(), of checkpoints and of offload_states(). Plain values; any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mesh_sizes.h"
#include "comm/communicator.h"
#include "config/config.h"
#include "monitor/event.h"
#include "optim/schedule.h"
#include "pipeline/layers.h"
#include "tensor_parallel/plan.h"

namespace zerorun {

/// Parameters with their own hyperparameters. A hyperparameter that is not set has the value of the config's
/// optimizer.
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<std::pair<double, double>> betas;
  std::optional<double> eps = {};
};

/// The states that Engine::offload_states() moves (DeepSpeed: optim_states, hp_params, lp_grads).
enum class OffloadedState { moments, master_weights, gradients };

struct InitializeOptions {
  std::shared_ptr<Communicator> communicator;  // of all ranks; default: connect(), from the environment
  /// The sizes of the mesh (base/mesh_sizes.h); default: the config's zerorun.mesh, else all ranks are data
  /// ranks. Gradients are averaged over the data ranks of the same tensor and pipeline coordinates, which
  /// form a data group. Parameters are split along tensor as `tensor_plan` says, and layers are divided along
  /// pipeline as `pipeline` says.
  std::optional<MeshSizes> mesh = {};
  /// How parameters are split among tensor ranks (docs/tensor_parallel.md): required if the mesh has several,
  /// else without effect. All ranks give whole models, and the tensor ranks get the initial values of the
  /// first of them. The ranks of a tensor group must compute with the same samples. An empty plan splits
  /// nothing: every data group trains a model of its own.
  std::optional<TensorPlan> tensor_plan = {};
  /// The model as a list of layers (docs/pipeline.md): required if the mesh has several pipeline stages. All
  /// ranks give the whole model and all layers, build the model under a DeferredInit (zero/deferred_init.h)
  /// if a stage's memory does not hold it, and train by Engine::train_batch(). Without layers nothing is
  /// divided: every data group trains a model of its own, the groups clip by one norm, the first group's, and
  /// skip steps together.
  std::optional<Pipeline> pipeline = {};
  /// The program's own optimizer. It must be element-wise, have made no step yet, and outlive the engine. The
  /// engine's destructor restores the optimizer's parameters and state, but not its learning rates and betas.
  torch::optim::Optimizer* optimizer = nullptr;
  std::vector<ParameterGroup> parameter_groups;  // default: one group with every parameter that requires grad
  /// For Muon's per_head_muon: the numbers of attention heads into which the rows of matrices divide, by
  /// parameter name.
  std::map<std::string, int64_t> attention_heads = {};

  // The program's own schedule. At most one of `schedule` and `lr_scheduler` may be set, and only if the
  // config has no "scheduler". A skipped step does not advance the schedule.

  /// Returns the learning rate for a step and a group, `[](int64_t step, int group) { return 1e-3; }`, or a
  /// ScheduledValues, which may also set betas. The engine's thread calls it once for each applied step and
  /// each group, in order (for step 0 in initialize()). It must return the same on every rank, and what it
  /// captures must outlive the engine. If it throws, step() passes the exception on after the update, and the
  /// next backward(), step() or get_lr() calls it again before anything else, so that no step uses values of
  /// an earlier step. On a GPU the schedule is called in the first of these functions that runs when the
  /// step's outcome is known.
  Schedule schedule;
  /// A torch::optim scheduler of `optimizer`. It must outlive the engine, which calls its step() once after
  /// each applied step. Do not pass a scheduler that needs a loss (ReduceLROnPlateauScheduler): the program
  /// itself must step such a scheduler, after each step() for which engine.was_step_applied() is true.
  torch::optim::LRScheduler* lr_scheduler = nullptr;

  /// Without an optimizer: the engine only computes. Nothing is trained, parameters that require grad too,
  /// and backward() and step() throw UserError. The config's optimizer and scheduler are ignored.
  bool computes_only = false;
  /// If true, grad() of each trained parameter is a mark after a backward (engine/gradient_marks.h), by which
  /// zero_grad() of the model and of optimizers reach the engine.
  bool marks_gradients = false;

  std::optional<int64_t> bucket_numel;  // largest bucket, in elements; default: chosen by the layout

  // Values for "auto" settings, for the initialize() that reads a ds_config.json.
  Arguments arguments;                 // by key path: {"optimizer.params.lr", 1e-4}
  std::optional<int64_t> hidden_size;  // default: found from the model (engine/hidden_size.h)

  /// The run's output folder, in which rank 0 writes the resolved configuration, ds_config.resolved.json. It
  /// is created if it does not exist; empty: nothing is written.
  std::filesystem::path output_folder;
  /// Gets, on rank 0, each event that the config's monitors get: a monitor of the program. Called by the
  /// engine's thread, in step() and log(). If it throws, a warning is logged, once.
  EventSink event_sink;
  bool log_config = false;  // rank 0 logs the config's notes too, not only its warnings
};

/// What the program saves of its own. Rank 0's counts.
struct ClientState {
  std::string json = "null";
  std::map<std::string, at::Tensor> tensors = {};  // by name, as CheckpointOptions::client_tensors
};

struct CheckpointOptions {
  std::string client_state = "null";  // JSON of the program; rank 0's is saved, load_checkpoint() returns it
  /// Tensors of the program, by name; rank 0's are copied at the call and saved in client_state.safetensors.
  /// Their dtypes must be those of safetensors, and their names UTF-8.
  std::map<std::string, at::Tensor> client_tensors = {};
  bool save_latest = true;  // the file `latest` will name this checkpoint
  /// If true, leaves out frozen parameters, and load_checkpoint() does not change them. If false, writes them
  /// once per run: later checkpoints hard-link the same file, unless the program has written to frozen
  /// parameters.
  bool exclude_frozen = false;
  /// How many of the folder's checkpoints named global_stepN to keep: the ones that were saved last; others
  /// are deleted, if they hold nothing else. 0: keep all.
  int64_t keep_last = 0;
  /// If true, save_checkpoint() returns before files are written; if false, once the checkpoint is published.
  bool asynchronous = true;
};

struct RestoreOptions {
  /// If true, the model must have exactly the checkpoint's parameters and buffers. If false, parameters and
  /// buffers that only one of the two has are left as they are.
  bool strict = true;
  bool optimizer_states = true;  // if false, the optimizer starts anew
  bool counters = true;  // if false, step counts, schedule, loss scale and random generators stay as they are
  /// Whether load_newest() may take a generation in memory (docs/restarts.md), and step() may hold some.
  bool from_memory = true;
  /// Gives the program's client_state as it is now, for generations in memory. Called in load_newest(), and
  /// when one is made. A program that saves a client_state and gives none here holds no generations.
  std::function<ClientState()> client_state = {};
  /// Whether generations are made by Engine::hold_generation(), for programs that change what they save
  /// after step(): a learning rate schedule. If not, by step(), or by DataPosition::advance() if the engine
  /// has a position.
  bool holds_when_asked = false;
};

struct RestoredCheckpoint {
  std::filesystem::path path;
  std::string client_state;                          // JSON
  std::map<std::string, at::Tensor> client_tensors;  // on the CPU, contiguous
};

}  // namespace zerorun
