// Which gradients the engine holds since the last optimizer step: what begins and ends a backward, and what
// drops gradients. Owned by EngineState. Backwards of the program end on autograd's threads, everything else
// happens on the engine's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/backward_passes.h"
#include "engine/gradient_marks.h"
#include "engine/step_progress.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"

namespace zerorun {

// Which backwards of the window the gradients are from. A backward that a rank does not know of (it threw
// before the first gradient, or the forward threw) is missing in `before`, but `after` is equal on all ranks
// that have dropped their gradients in the same place.
struct HeldSince {
  bool dropped = false;    // gradients of the window have been dropped, the last time in this place:
  int64_t micro_step = 0;  // in this micro-step,
  int64_t before = 0;      // after so many of its backwards,
  int64_t after = 0;       // and before so many of them
};

class HeldGradients {
 public:
  /// `begin`: called when the program starts a backward itself; throws UserError if none may begin now. With
  /// `has_marks` gradients are marked (engine/gradient_marks.h). The other arguments must outlive this
  /// object.
  HeldGradients(GradientReducer& reducer, const Buckets& buckets, const StepProgress& progress,
                bool has_marks, std::function<BackwardPasses::Start()> begin);

  /// Whether gradients of a backward since the last optimizer step are held.
  bool any() const { return any_; }
  /// Number of backwards since the last step().
  int64_t backwards() const { return backwards_; }
  /// Whether a backward since the last step() was declared the last one before an optimizer step.
  bool had_last_backward() const { return had_last_backward_; }
  /// For messages: what has dropped gradients since the last step(), as the end of a sentence.
  const std::string& why_dropped() const { return why_dropped_; }
  const HeldSince& held_since() const { return held_since_; }
  /// What the other ranks are to know of held_since(): all but `stop`.
  WindowNotice notice() const;

  /// To be called after each backward: the engine holds gradients now. Marks them, if they are to be marked.
  void note_backward();
  /// To be called when Engine::backward() has thrown.
  void note_failed_backward();
  /// Undoes what a backward has done that may not begin.
  void refuse_backward();
  /// Whether the last backward threw and its gradients are not dropped yet. Also true while one runs.
  bool has_failed_backward() const { return backward_failed_ || passes_.failed(); }
  /// To be called before anything else is done with gradients. If the last backward threw, its gradients are
  /// dropped, as if it had not begun. If they have been added to those of earlier backwards, they cannot be:
  /// throws UserError, unless the program has dropped all of them. Runs the reductions for which other ranks
  /// wait, so no other collective may come before. `call`: the function to name in the error.
  void follow_failed_backward(const std::string& call);
  /// Drops the gradients if the program has dropped them by the marks in grad(). Throws UserError if it has
  /// dropped some of them, or set one. `call`: the function to name in the error.
  void follow_marks(const std::string& call);

  /// Engine::zero_grad(): the program drops all gradients, also those of a backward that threw. Warns once if
  /// those of earlier micro-steps are among them.
  void zero();
  /// Drops all gradients since the last optimizer step. The step comes after as many micro-steps as without
  /// this.
  void discard();
  void end_micro_step();
  /// To be called when the ranks have heard each other's notice().
  void forget_drops() { held_since_ = {}; }
  /// To be called after an update, or when it is skipped.
  void end_window();
  /// Goes on with the gradients of a checkpoint, which the reducer has taken.
  void resume(const WindowSoFar& window);

  /// Whether grad() of the trained parameters has marks, after a backward.
  bool has_marks() const { return marks_ != nullptr; }
  /// To be called when another engine has taken parameters: takes the marks away, for good.
  void stop() { marks_.reset(); }
  /// To be called when parameters are back in their buckets (GradientMarks::hook_again()).
  void hook_again();

 private:
  void count_drop();
  void drop();
  void drop_failed_backward();

  GradientReducer* reducer_;
  const StepProgress* progress_;
  BackwardPasses passes_;
  std::unique_ptr<GradientMarks> marks_;  // null unless gradients are marked
  HeldSince held_since_;
  int64_t backwards_ = 0;
  bool backward_failed_ = false;  // Engine::backward() threw, and its gradients are not dropped yet
  bool any_ = false;
  bool had_last_backward_ = false;
  bool warned_of_drops_ = false;
  std::string why_dropped_;
};

}  // namespace zerorun
