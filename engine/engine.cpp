#include "engine/engine.h"

#include <cmath>
#include <string>
#include <utility>

#include "base/activity_board.h"
#include "base/error.h"
#include "base/full_world.h"
#include "base/progress_bar.h"
#include "comm/agreement.h"
#include "device/dtypes.h"
#include "engine/engine_state.h"
#include "engine/saving/checkpoints.h"

namespace zerorun {

namespace {

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

const std::shared_ptr<EngineState>& EngineStateHandle::get() const {
  if (state_) return state_;
  throw UserError(
      "a use of an engine that has been moved to another Engine object: use that one, or keep the engine in "
      "a std::unique_ptr and move that");
}

Engine::Engine(std::shared_ptr<EngineState> state) : state_(std::move(state)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

void Engine::zero_grad() {
  EngineState& state = *state_;
  state.check_not_failed("engine.zero_grad");
  check_outside_backward("engine.zero_grad");
  state.check_has_parameters("engine.zero_grad");
  state.held.zero();
  state.monitor->drop_losses();
}

void Engine::set_gradient_accumulation_boundary(bool is_boundary) {
  if (!state_->config.managed_gradient_accumulation) {
    throw UserError(
        "set_gradient_accumulation_boundary() with \"managed_gradient_accumulation\": false, with which "
        "every step() updates");
  }
  const int world = state_->mesh.world().world_size();
  if (const auto full = full_world_of(world)) {
    throw UserError(
        "set_gradient_accumulation_boundary() while " + std::to_string(*full - world) + " of the job's " +
        std::to_string(*full) +
        " ranks are left out (zerorun --min_nodes): the program would update on a part of the global "
        "batch; let the engine count micro-steps, or run the job without --min_nodes");
  }
  state_->progress.set_boundary(is_boundary);
}

at::Tensor Engine::train_batch(std::span<const MicroBatch> batches) {
  return zerorun::train_batch(*state_, batches);
}
at::Tensor Engine::eval_batch(std::span<const MicroBatch> batches) {
  return zerorun::eval_batch(*state_, batches);
}

void Engine::step() {
  state_->check_not_divided("engine.step");
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
  const ActivityScope activity(Activity::saving);
  HeldGenerations& generations = state_->held_generations;
  if (const std::string reason = why_not_held(options, generations.gives_client_state()); !reason.empty())
    generations.stop(reason);
  return zerorun::save_checkpoint(*state_, directory, tag, options);
}

void Engine::wait_for_checkpoint() {
  const ActivityScope activity(Activity::saving);
  constexpr std::chrono::milliseconds kInterval(20);
  CheckpointProgress progress = checkpoint_progress();
  ProgressBar bar("writing the checkpoint", progress.bytes, communicator().rank() == 0);
  for (; bar.shows() && progress.is_writing; progress = checkpoint_progress()) {
    bar.show(progress.written);
    std::this_thread::sleep_for(kInterval);
  }
  state_->checkpoints.wait();
}

CheckpointProgress Engine::checkpoint_progress() const {
  const CheckpointWriter& writer = state_->checkpoints;
  return {.is_writing = writer.is_writing(), .written = writer.written_bytes(), .bytes = writer.bytes()};
}

RestoredCheckpoint Engine::load_checkpoint(const std::filesystem::path& directory, const std::string& tag,
                                           const RestoreOptions& options) {
  const ActivityScope activity(Activity::loading);
  state_->held_generations.drop();
  return zerorun::load_checkpoint(*state_, directory, tag, options, checkpoint::local_file_system());
}

std::optional<RestoredCheckpoint> Engine::load_newest(const std::filesystem::path& directory,
                                                      const RestoreOptions& options) {
  const ActivityScope activity(Activity::loading);
  return zerorun::load_newest(*state_, directory, options, checkpoint::local_file_system());
}

bool Engine::holds_generations() const {
  return state_->held_generations.holds();
}

void Engine::hold_generation() {
  state_->held_generations.hold(*state_);
}

void Engine::attach(const DataPosition& position) {
  state_->data = position;
  state_->data->divide({.micro_batch = state_->config.batch.micro_batch_size_per_gpu,
                        .ranks = state_->mesh.data().world_size(),
                        .rank = state_->mesh.data().rank()});
  state_->held_generations.follow(*state_, *state_->data);
}

void Engine::save_16bit_model(const std::filesystem::path& directory, const std::string& filename,
                              bool exclude_frozen) {
  const ActivityScope activity(Activity::saving);
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

AutocastScope Engine::autocast() const {
  return AutocastScope(state_->autocast_state());
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
