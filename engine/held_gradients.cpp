// The part of EngineState that knows which gradients the engine holds since the last optimizer step: what
// begins and ends a backward, and what drops gradients.
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/program.h"
#include "engine/engine_state.h"

namespace zerorun {
namespace {

// Runs the collectives that a backward that threw has not run. A rank on which it did not throw may be in
// another collective.
template <typename Action>
void run_after_failure(const Action& action) {
  try {
    action();
  } catch (const CommError& error) {
    throw CommError(std::string(error.what()) +
                    ". On this rank the last backward threw; on the others it may not have");
  }
}

}  // namespace

BackwardPasses::Start EngineState::begin_plain_backward() try {
  follow_failed_backward("loss.backward");
  follow_marks("loss.backward");
  check_before_backward("loss.backward");
  if (scaler && scaled_backwards == 0) {
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
  const bool again = held_since.dropped && held_since.micro_step == counts.micro;
  held_since = {.dropped = true,
                .micro_step = counts.micro,
                .before = backwards + (again ? held_since.before : 0),
                .after = 0};
}

WindowNotice EngineState::window_notice() const {
  constexpr int64_t kPlaces = int64_t{1} << 20;
  const auto place = [&](int64_t number) { return (held_since.micro_step * 1021 + number) % kPlaces; };
  return {.stop = termination_requested(),
          .dropped = held_since.dropped,
          .dropped_after = place(held_since.before),
          .dropped_before = place(held_since.after)};
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
  if (!marks || has_failed_backward()) return;
  if (marks->dropped(call)) drop_gradients();
}

void EngineState::note_backward() {
  ++backwards;
  if (held_since.micro_step == counts.micro) ++held_since.after;
  holds_gradients = true;
  had_last_backward = had_last_backward || is_declared_last();
  if (marks) marks->place();
}

void EngineState::drop_failed_backward() {
  if (!has_failed_backward()) return;
  // Other ranks may still hold gradients to which this rank's belong.
  if (holds_gradients || reducer.reduces_every_backward()) count_drop();
  backward_failed = false;
  passes.forget();
  run_after_failure([&] { discard_gradients(); });
  if (marks) marks->empty();
  why_dropped = ": the last backward threw, and its gradients were dropped";
}

void EngineState::follow_failed_backward(const std::string& call) {
  if (!has_failed_backward()) return;
  run_after_failure([&] { reducer.finish_abandoned(); });
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
