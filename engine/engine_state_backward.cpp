// Backwards that the engine starts, and those that the program starts itself.
#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "base/activity_board.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_state.h"
#include "engine/tensor_checks.h"

namespace zerorun {
namespace {

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

}  // namespace

void EngineState::run_backward(const Tensors& roots, const Tensors& gradients, bool retain_graph,
                               bool create_graph) {
  const ActivityScope activity(Activity::backward);
  const TimelineBusy busy;
  StepTimer::Scope scope(timer, Phase::backward);
  memory.update(bytes_by_use());
  reducer.start_backward(progress.is_last_backward());
  try {
    torch::autograd::backward(roots, gradients, retain_graph, create_graph);
    reducer.finish_backward();
  } catch (...) {
    reducer.abandon_backward();
    held.note_failed_backward();
    throw;
  }
  held.note_backward();
}

at::Tensor EngineState::seed_of(const at::Tensor& loss, int64_t micro_steps) const {
  double scale = loss_scale() / static_cast<double>(micro_steps);
  // A scale beyond float32 becomes infinity: gradients overflow, so the step is skipped and the scale falls.
  if (scale > std::numeric_limits<float>::max()) scale = std::numeric_limits<double>::infinity();
  return at::full_like(loss, scale);
}

void Engine::backward(const at::Tensor& loss, bool retain_graph, bool create_graph) {
  EngineState& state = *state_;
  check_outside_backward("engine.backward");
  state.check_has_parameters("engine.backward");
  state.held.follow_failed_backward("engine.backward");
  state.held.follow_marks("engine.backward");
  state.check_trains("engine.backward");
  state.check_not_divided("engine.backward");
  if (!loss.defined() || loss.numel() != 1 || !loss.requires_grad()) {
    throw UserError("engine.backward(loss): expected a loss of one element that requires grad, found " +
                    (loss.defined() ? "a tensor of " + std::to_string(loss.numel()) + " elements" +
                                          (loss.requires_grad() ? "" : " that does not require grad")
                                    : std::string("an undefined tensor")));
  }
  state.follow_schedule();
  state.check_before_backward("engine.backward");
  check_losses(state, loss, "engine.backward");
  const at::Tensor seed = state.seed_of(loss, state.config.batch.gradient_accumulation_steps);
  state.run_backward({loss}, {seed}, retain_graph, create_graph);
  state.monitor->add_loss(loss);
}

at::Tensor Engine::scale(const at::Tensor& loss) {
  const std::shared_ptr<EngineState>& state = state_;
  state->finish_open_step();
  if (!state->scaler) return loss;
  at::Tensor scaled = loss * state->loss_scale();
  if (scaled.requires_grad()) note_scaled_backwards(scaled, state);
  return scaled;
}

BackwardPasses::Start EngineState::begin_plain_backward() try {
  held.follow_failed_backward("loss.backward");
  held.follow_marks("loss.backward");
  check_not_divided("loss.backward");
  check_before_backward("loss.backward");
  if (scaler && scaled_backwards == 0) {
    throw UserError(
        "loss.backward() under fp16 training without the loss scale: call engine.scale(loss).backward(), or "
        "engine.backward(loss)");
  }
  // Not memory.update(): it asks the residency, whose lock a forward in another thread may hold while it
  // waits for that of the reducer's hooks, which is held here.
  const auto steps = static_cast<double>(config.batch.gradient_accumulation_steps);
  return {.boundary = progress.is_last_backward(), .scale = static_cast<float>(1 / steps)};
} catch (...) {
  held.refuse_backward();
  throw;
}

}  // namespace zerorun
