#include "engine/engine.h"

#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/process.h"
#include "comm/agreement.h"
#include "comm/connect/rendezvous.h"
#include "device/dtypes.h"
#include "engine/engine_state.h"
#include "engine/hidden_size.h"
#include "engine/resolved_config.h"
#include "engine/saving/checkpoints.h"
#include "engine/schedules.h"
#include "engine/setup.h"
#include "engine/state_placement.h"
#include "engine/tensor_checks.h"
#include "engine/tensor_shares.h"
#include "zero/interception.h"

namespace zerorun {

namespace {

void log_precision(const PrecisionConfig& precision) {
  if (precision.training == Dtype::fp32) {
    if (precision.communication == Dtype::fp32) return;
    log_info(std::string("training in fp32; gradients travel in ") + name_of(precision.communication) +
             " (communication_data_type)");
    return;
  }
  log_info(std::string("training in ") + name_of(precision.training) +
           " with fp32 master weights that start from the " +
           (precision.master_from_fp32 ? "parameters as given" : "rounded parameters") +
           "; gradients travel in " + name_of(precision.communication) + " and are accumulated in " +
           name_of(precision.accumulation) + " (data_types.grad_accum_dtype)");
}

// DeepSpeed reads "Adam" as AdamW; elsewhere "Adam" means Adam with L2. So the log says which one is used.
void log_adam(const Config& config) {
  const AdamConfig* adam = config.optimizer ? std::get_if<AdamConfig>(&*config.optimizer) : nullptr;
  if (!adam || !adam->silently_decoupled) return;
  log_info("optimizer \"Adam\" decouples weight decay as AdamW does; with \"adam_w_mode\": false it is L2");
}

// Lives as long as the graph task of a backward from a loss of scale().
struct ScaledBackward {
  explicit ScaledBackward(std::weak_ptr<EngineState> engine) : state(std::move(engine)) {
    if (const auto there = state.lock()) ++there->scaled_backwards;
  }
  ~ScaledBackward() {
    if (const auto there = state.lock()) --there->scaled_backwards;
  }
  ScaledBackward(const ScaledBackward&) = delete;
  ScaledBackward& operator=(const ScaledBackward&) = delete;

  std::weak_ptr<EngineState> state;
};

// A backward gets to the loss before any parameter. Its graph task destroys the callback also if it throws.
void note_scaled_backwards(const at::Tensor& scaled, std::weak_ptr<EngineState> state) {
  scaled.register_hook([state = std::move(state)](const at::Tensor&) {
    if (torch::autograd::get_current_graph_task_id() < 0) return;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [running = std::make_shared<ScaledBackward>(state)] {});
  });
}

// An engine that only computes has an optimizer without parameters.
Config without_optimizer(Config config) {
  config.optimizer = SgdConfig();
  config.scheduler.reset();
  return config;
}

StateKind kind_of(OffloadedState state) {
  switch (state) {
    case OffloadedState::moments:
      return StateKind::moment;
    case OffloadedState::master_weights:
      return StateKind::master;
    case OffloadedState::gradients:
      break;
  }
  return StateKind::gradient;
}

}  // namespace

Engine initialize(Model model, const Config& given, InitializeOptions options) {
  const Config config = options.computes_only ? without_optimizer(given) : given;
  if (is_recording()) {
    throw UserError("initialize() inside a DeferredInit scope: end the scope once the model is built");
  }
  check_one_optimizer(config, options);
  check_schedules(config, options);
  check_offload_options(config, options);
  ModelParameters parameters = collect_parameters(model, config, options);
  Mesh mesh = make_mesh(config, options, options.communicator ? options.communicator : connect());
  check_data_size(config, mesh);
  parameters.has_tensor_plan = has_tensor_plan(options, mesh);
  check_ranks_agree(parameters, describe_settings(config, options), mesh);
  split_parameters(parameters, model, config, options, mesh);
  write_resolved_config(config, options.output_folder, mesh.world());
  if (mesh.world().rank() == 0) {
    for (const std::string& warning : config.warnings) log_warning(warning);
    if (options.log_config) {
      for (const std::string& note : config.notes) log_info(note);
    }
    log_adam(config);
    log_precision(config.precision);
  }
  auto state = kept_by_forks(std::make_shared<EngineState>(std::move(model), config, std::move(mesh),
                                                           std::move(parameters), options));
  log_offload(config, state->store, state->mesh.world());
  return_freed_memory();  // memory that parameters had before they moved into buckets
  return Engine(std::move(state));
}

Engine initialize(Model model, const std::filesystem::path& ds_config, InitializeOptions options) {
  if (!options.communicator) options.communicator = connect();
  const Config config = load_config(
      ds_config, {.world_size = options.communicator->world_size(),
                  .mesh = options.mesh,
                  .arguments = options.arguments,
                  .hidden_size = options.hidden_size ? options.hidden_size : hidden_size_of(model)});
  return initialize(std::move(model), config, std::move(options));
}

Engine initialize(torch::nn::Module& model, const Config& config, InitializeOptions options) {
  return initialize(model_of(model), config, std::move(options));
}

Engine initialize(torch::nn::Module& model, const std::filesystem::path& ds_config,
                  InitializeOptions options) {
  return initialize(model_of(model), ds_config, std::move(options));
}

const std::shared_ptr<EngineState>& EngineStateHandle::get() const {
  if (state_) return state_;
  throw UserError(
      "a use of an engine that has been moved to another Engine object: use that one, or keep the engine in "
      "a "
      "std::unique_ptr and move that");
}

Engine::Engine(std::shared_ptr<EngineState> state) : state_(std::move(state)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

void Engine::backward(const at::Tensor& loss, bool retain_graph, bool create_graph) {
  EngineState& state = *state_;
  check_outside_backward("engine.backward");
  state.check_has_parameters("engine.backward");
  state.held.follow_failed_backward("engine.backward");
  state.held.follow_marks("engine.backward");
  state.check_trains("engine.backward");
  if (!loss.defined() || loss.numel() != 1 || !loss.requires_grad()) {
    throw UserError("engine.backward(loss): expected a loss of one element that requires grad, found " +
                    (loss.defined() ? "a tensor of " + std::to_string(loss.numel()) + " elements" +
                                          (loss.requires_grad() ? "" : " that does not require grad")
                                    : std::string("an undefined tensor")));
  }
  state.follow_schedule();
  state.check_before_backward("engine.backward");
  check_losses(state, loss);
  StepTimer::Scope scope(state.timer, Phase::backward);
  double scale = loss_scale() / static_cast<double>(state.config.batch.gradient_accumulation_steps);
  // A scale beyond float32 becomes infinity: gradients overflow, so the step is skipped and the scale falls.
  if (scale > std::numeric_limits<float>::max()) scale = std::numeric_limits<double>::infinity();
  state.reducer.start_backward(state.progress.is_last_backward());
  try {
    loss.backward(at::full_like(loss, scale), retain_graph, create_graph);
    state.reducer.finish_backward();
  } catch (...) {
    state.reducer.abandon_backward();
    state.held.note_failed_backward();
    throw;
  }
  state.held.note_backward();
}

at::Tensor Engine::scale(const at::Tensor& loss) {
  const std::shared_ptr<EngineState>& state = state_;
  state->finish_open_step();
  if (!state->scaler) return loss;
  at::Tensor scaled = loss * state->loss_scale();
  if (scaled.requires_grad()) note_scaled_backwards(scaled, state);
  return scaled;
}

void Engine::zero_grad() {
  EngineState& state = *state_;
  state.check_not_failed("engine.zero_grad");
  check_outside_backward("engine.zero_grad");
  state.check_has_parameters("engine.zero_grad");
  state.held.zero();
}

void Engine::set_gradient_accumulation_boundary(bool is_boundary) {
  if (!state_->config.managed_gradient_accumulation) {
    throw UserError(
        "set_gradient_accumulation_boundary() with \"managed_gradient_accumulation\": false, with which "
        "every "
        "step() updates");
  }
  state_->progress.set_boundary(is_boundary);
}

void Engine::step() {
  state_->step();
}

Engine::NoSync::NoSync(std::shared_ptr<EngineState> state) : state_(std::move(state)) {
  state_->progress.open_no_sync();
}
Engine::NoSync::~NoSync() {
  state_->progress.close_no_sync();
}
Engine::NoSync Engine::no_sync() {
  return NoSync(state_);
}

std::filesystem::path Engine::save_checkpoint(const std::filesystem::path& directory, const std::string& tag,
                                              const CheckpointOptions& options) {
  return zerorun::save_checkpoint(*state_, directory, tag, options);
}

void Engine::wait_for_checkpoint() {
  state_->checkpoints.wait();
}

CheckpointProgress Engine::checkpoint_progress() const {
  const CheckpointWriter& writer = state_->checkpoints;
  return {.is_writing = writer.is_writing(), .written = writer.written_bytes(), .bytes = writer.bytes()};
}

RestoredCheckpoint Engine::load_checkpoint(const std::filesystem::path& directory, const std::string& tag,
                                           const RestoreOptions& options) {
  return zerorun::load_checkpoint(*state_, directory, tag, options, checkpoint::local_file_system());
}

void Engine::save_16bit_model(const std::filesystem::path& directory, const std::string& filename,
                              bool exclude_frozen) {
  zerorun::save_16bit_model(*state_, directory, filename, exclude_frozen, checkpoint::local_file_system());
}

void Engine::offload_states(const std::vector<OffloadedState>& states) {
  std::vector<StateKind> kinds;
  for (const OffloadedState state : states) kinds.push_back(kind_of(state));
  state_->finish_open_step();
  state_->checkpoints.finish();
  on_all_ranks(state_->mesh.world(), "engine.offload_states()", [&] {
    state_->check_between_steps("engine.offload_states");
    state_->states_on_host.offload(kinds);
  });
}

void Engine::reload_states() {
  on_all_ranks(state_->mesh.world(), "engine.reload_states()", [&] { state_->states_on_host.reload(); });
}

c10::Device Engine::device() const {
  return state_->mesh.world().device().location();
}

at::ScalarType Engine::dtype() const {
  return scalar_type(state_->config.precision.training);
}

at::Tensor Engine::cast_input(const at::Tensor& input) const {
  const bool casts = state_->config.precision.auto_cast && input.is_floating_point();
  return casts ? input.to(dtype()) : input;
}

void Engine::train() {
  state_->model.set_training(true);
}
void Engine::eval() {
  state_->model.set_training(false);
}

void Engine::synchronize() {
  if (state_->residency) state_->residency->synchronize();
}

bool Engine::should_stop() const {
  return state_->should_stop;
}

bool Engine::is_gradient_accumulation_boundary() const {
  return state_->progress.step_updates();
}

std::vector<double> Engine::get_lr() const {
  state_->finish_open_step();
  state_->follow_schedule();
  std::vector<double> lrs;
  for (int group = 0; group < state_->optimizer->groups(); ++group)
    lrs.push_back(state_->optimizer->lr(group));
  return lrs;
}

std::vector<std::optional<std::pair<double, double>>> Engine::get_betas() const {
  state_->finish_open_step();
  state_->follow_schedule();
  std::vector<std::optional<std::pair<double, double>>> betas;
  for (int group = 0; group < state_->optimizer->groups(); ++group)
    betas.push_back(state_->optimizer->betas(group));
  return betas;
}

void Engine::set_lr(int group, double lr) {
  state_->check_sets_group(group, "set_lr");
  if (!std::isfinite(lr) || lr < 0)
    throw UserError("engine.set_lr(): expected a rate that is finite and at least 0, found " +
                    std::to_string(lr));
  state_->optimizer->set_lr(group, lr);
}

void Engine::set_betas(int group, std::pair<double, double> betas) {
  state_->check_sets_group(group, "set_betas");
  if (!state_->optimizer->betas(group))
    throw UserError("engine.set_betas(): " + state_->optimizer_name + " has no betas: leave the call out");
  state_->optimizer->set_betas(group, betas);
}

void Engine::release_schedule() {
  state_->check_has_schedule("release_schedule");
  state_->finish_open_step();
  state_->follow_schedule();
  state_->schedule.release();
}

void Engine::set_scheduled(int64_t applied_steps) {
  state_->check_has_schedule("set_scheduled");
  if (state_->schedule.is_given()) {
    throw UserError(
        "engine.set_scheduled() while step() follows the schedule: call release_schedule() first");
  }
  if (applied_steps < 0) {
    throw UserError("engine.set_scheduled(): expected a number of steps of at least 0, found " +
                    std::to_string(applied_steps));
  }
  state_->finish_open_step();
  state_->schedule.set(applied_steps);
}

void Engine::set_weight_decay(int group, double weight_decay) {
  state_->finish_open_step();
  state_->check_group(group, "set_weight_decay");
  if (!std::isfinite(weight_decay) || weight_decay < 0)
    throw UserError("engine.set_weight_decay(): expected a number that is finite and at least 0, found " +
                    std::to_string(weight_decay));
  state_->optimizer->set_weight_decay(group, weight_decay);
}

double Engine::get_global_grad_norm() const {
  state_->finish_open_step();
  return state_->outcome.norm();
}
double Engine::loss_scale() const {
  return state_->loss_scale();
}
bool Engine::was_step_applied() const {
  state_->finish_open_step();
  return state_->outcome.applied();
}
int64_t Engine::backwards() const {
  return state_->held.backwards();
}
int64_t Engine::global_steps() const {
  return state_->progress.counts().global;
}
int64_t Engine::skipped_steps() const {
  state_->finish_open_step();
  return state_->progress.counts().skipped;
}

ResidencyReport Engine::residency() const {
  return state_->residency ? state_->residency->report() : ResidencyReport();
}

const Config& Engine::config() const {
  return state_->config;
}
Communicator& Engine::communicator() {
  return state_->mesh.world();
}
const Mesh& Engine::mesh() const {
  return state_->mesh;
}

}  // namespace zerorun
