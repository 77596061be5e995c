// Backwards that the program starts itself: loss.backward(), torch::autograd::backward(). Owned by the
// engine. Hooks and callbacks run on autograd's threads; failed() and forget() on the program's, between
// backwards.
//
// [Note: plain backward] LibTorch announces no backward: the first gradient of a parameter begins a pass, and
// a callback of its graph task ends it. That gradient may arrive in a task nested in another one, where a
// layer is recomputed in backward. The callback of a nested task is called inside a node of the outer task,
// so it puts pre-hooks on the nodes that the outer task runs next; the first of them to run adds a callback
// to the outer task. A task that ends with an exception destroys its callbacks without a call, and a graph
// that is destroyed its pre-hooks: both mean that the pass has failed.
#pragma once

#include <functional>
#include <memory>

#include "zero/gradient_reducer.h"

namespace zerorun {

class BackwardPasses {
 public:
  struct Start {
    bool boundary;
    float scale;
  };

  /// `begin` is called at the first gradient of a pass: it throws UserError if no backward may begin now.
  /// `end` is called when the pass is complete. `reducer` must outlive it.
  BackwardPasses(GradientReducer& reducer, std::function<Start()> begin, std::function<void()> end);
  ~BackwardPasses();
  BackwardPasses(const BackwardPasses&) = delete;
  BackwardPasses& operator=(const BackwardPasses&) = delete;

  /// Whether the last pass threw. Its gradients are incomplete.
  bool failed() const;
  /// Call it once the gradients of a failed pass have been discarded.
  void forget() { pass_.reset(); }

 private:
  struct Pass;
  struct TaskEnd;
  struct OuterTask;
  struct JoinOuter;

  void on_gradient();

  GradientReducer* reducer_;
  std::function<Start()> begin_;
  std::function<void()> end_;
  std::shared_ptr<Pass> pass_;  // the last one
};

}  // namespace zerorun
