#include "engine/held_gradients.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"

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

HeldGradients::HeldGradients(GradientReducer& reducer, const Buckets& buckets, const StepProgress& progress,
                             bool has_marks, std::function<BackwardPasses::Start()> begin)
    : reducer_(&reducer),
      progress_(&progress),
      passes_(
          reducer, std::move(begin), [this] { note_backward(); }, [this] { refuse_backward(); }),
      marks_(has_marks ? std::make_unique<GradientMarks>(buckets.trained()) : nullptr) {}

void HeldGradients::discard() {
  reducer_->discard_window();
  backwards_ = 0;
  any_ = had_last_backward_ = false;
  if (marks_) marks_->clear();
}

void HeldGradients::count_drop() {
  const bool again = held_since_.dropped && held_since_.micro_step == progress_->counts().micro;
  held_since_ = {.dropped = true,
                 .micro_step = progress_->counts().micro,
                 .before = backwards_ + (again ? held_since_.before : 0),
                 .after = 0};
}

WindowNotice HeldGradients::notice() const {
  constexpr int64_t kPlaces = int64_t{1} << 20;
  const auto place = [&](int64_t number) { return (held_since_.micro_step * 1021 + number) % kPlaces; };
  return {.dropped = held_since_.dropped,
          .dropped_after = place(held_since_.before),
          .dropped_before = place(held_since_.after)};
}

void HeldGradients::drop() {
  if (!any_) return;
  count_drop();
  discard();
  why_dropped_ =
      ": the program has dropped its gradients (zero_grad(), or grad() set to None, after backward(): "
      "drop them before backward() or after step())";
  if (progress_->counts().micro == 0 || std::exchange(warned_of_drops_, true)) return;
  log_warning(
      "zero_grad() between the micro-steps of an optimizer step drops the gradients of the earlier ones, and "
      "the step has those of the rest only: call it after a step() that updates "
      "(is_gradient_accumulation_boundary() is true before it)");
}

void HeldGradients::follow_marks(const std::string& call) {
  if (!marks_ || has_failed_backward()) return;
  if (marks_->dropped(call)) drop();
}

void HeldGradients::note_backward() {
  ++backwards_;
  if (held_since_.micro_step == progress_->counts().micro) ++held_since_.after;
  any_ = true;
  had_last_backward_ = had_last_backward_ || progress_->is_declared_last();
  if (marks_) marks_->place();
}

void HeldGradients::note_failed_backward() {
  backward_failed_ = true;
  refuse_backward();
}

void HeldGradients::refuse_backward() {
  if (marks_) marks_->refuse();
}

void HeldGradients::zero() {
  drop_failed_backward();
  drop();
  if (!marks_) return;
  marks_->clear();
  marks_->empty();
}

void HeldGradients::end_micro_step() {
  backwards_ = 0;
  why_dropped_.clear();
  had_last_backward_ = false;
}

void HeldGradients::end_window() {
  reducer_->start_window();
  any_ = false;
  if (marks_) marks_->clear();
}

void HeldGradients::resume(const WindowSoFar& window) {
  any_ = true;
  if (marks_) marks_->place(window.has_gradient);
}

void HeldGradients::hook_again() {
  if (marks_) marks_->hook_again();
}

void HeldGradients::drop_failed_backward() {
  if (!has_failed_backward()) return;
  // Other ranks may still hold gradients to which this rank's belong.
  if (any_ || reducer_->reduces_every_backward()) count_drop();
  backward_failed_ = false;
  passes_.forget();
  run_after_failure([&] { discard(); });
  if (marks_) marks_->empty();
  why_dropped_ = ": the last backward threw, and its gradients were dropped";
}

void HeldGradients::follow_failed_backward(const std::string& call) {
  if (!has_failed_backward()) return;
  run_after_failure([&] { reducer_->finish_abandoned(); });
  if (!any_ || (marks_ && marks_->dropped(call))) return drop_failed_backward();
  if (reducer_->has_gradients_of_backward()) {
    throw UserError(call +
                    "(): the last backward threw when some of its gradients had been added to those of the "
                    "earlier backwards of this optimizer step: drop them all with engine.zero_grad(), on all "
                    "ranks, and go on");
  }
  backward_failed_ = had_last_backward_ = false;
  passes_.forget();
  why_dropped_ = ": the last backward threw";
}

}  // namespace zerorun
