// The part of EngineState that knows which gradients the engine holds since the last optimizer step: what
// begins and ends a backward, and what drops gradients.
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/engine_state.h"

namespace zerorun {

BackwardPasses::Start EngineState::begin_plain_backward() try {
  follow_failed_backward("loss.backward");
  follow_marks("loss.backward");
  check_before_backward("loss.backward");
  if (scaler && !is_loss_scaled) {
    throw UserError(
        "loss.backward() under fp16 training without the loss scale: call engine.scale(loss).backward(), or "
        "engine.backward(loss)");
  }
  const auto steps = static_cast<double>(config.batch.gradient_accumulation_steps);
  return {.boundary = is_last_backward(), .scale = static_cast<float>(1 / steps)};
} catch (...) {
  if (marks) marks->refuse();
  throw;
}

bool EngineState::step_updates() const {
  if (!config.managed_gradient_accumulation) return true;
  return boundary.value_or(counts.micro + 1 >= config.batch.gradient_accumulation_steps);
}

bool EngineState::is_last_backward() const {
  return config.managed_gradient_accumulation && step_updates() && open_no_syncs == 0;
}

bool EngineState::is_declared_last() const {
  return boundary.value_or(false) && open_no_syncs == 0;
}

void EngineState::discard_gradients() {
  reducer.discard_window();
  backwards = 0;
  holds_gradients = had_last_backward = false;
  if (marks) marks->clear();
}

void EngineState::count_drop() {
  constexpr int64_t kPlaces = int64_t{1} << 20;  // squares are summed over ranks in 64 bits
  counts.drop_places = (counts.drop_places * 31 + counts.micro + backwards + 1) % kPlaces;
}

void EngineState::drop_gradients() {
  if (!holds_gradients) return;
  count_drop();
  discard_gradients();
  why_dropped =
      ": the program has dropped its gradients (zero_grad(), or grad() set to None, after backward(): "
      "drop them before backward() or after step())";
  if (counts.micro == 0 || std::exchange(warned_of_drops, true)) return;
  log_warning(
      "zero_grad() between the micro-steps of an optimizer step drops the gradients of the earlier ones, and "
      "the step has those of the rest only: call it after a step() that updates "
      "(is_gradient_accumulation_boundary() is true before it)");
}

void EngineState::follow_marks(const std::string& call) {
  if (!marks || backward_failed || passes.failed()) return;
  if (marks->dropped(call)) drop_gradients();
}

void EngineState::note_backward() {
  ++backwards;
  holds_gradients = true;
  had_last_backward = had_last_backward || is_declared_last();
  if (marks) marks->place();
}

void EngineState::drop_failed_backward() {
  if (!backward_failed && !passes.failed()) return;
  // Other ranks may still hold gradients to which this rank's belong.
  if (holds_gradients || reducer.reduces_every_backward()) count_drop();
  backward_failed = false;
  passes.forget();
  discard_gradients();
  if (marks) marks->empty();
  why_dropped = ": the last backward threw, and its gradients were dropped";
}

void EngineState::follow_failed_backward(const std::string& call) {
  if (!backward_failed && !passes.failed()) return;
  reducer.finish_abandoned();
  if (!holds_gradients || (marks && marks->dropped(call))) return drop_failed_backward();
  if (reducer.has_gradients_of_backward()) {
    throw UserError(call +
                    "(): the last backward threw when some of its gradients had been added to those of the "
                    "earlier backwards of this optimizer step: drop them all with engine.zero_grad(), on all "
                    "ranks, and go on");
  }
  backward_failed = had_last_backward = false;
  passes.forget();
  why_dropped = ": the last backward threw";
}

}  // namespace zerorun
