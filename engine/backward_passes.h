// Backward passes that the program starts with LibTorch's functions, such as loss.backward(). Owned by the
// engine. Hooks and callbacks run on autograd's threads. The program's thread calls failed() and forget(),
// between passes.
//
// [Note: plain backward] LibTorch does not announce a backward, so the first gradient of a parameter begins a
// pass, and a callback of that gradient's graph task ends the pass. Where a layer is recomputed in backward,
// the graph task may be nested in an outer task. The nested task's callback runs inside a node of the outer
// task, where it cannot add a callback to the outer task. So it puts pre-hooks on the nodes that the outer
// task runs next, and the first pre-hook to run adds the callback to the outer task. The pass has failed if a
// task ends with an exception, which destroys the task's callbacks without calling them, or if the graph is
// destroyed together with its pre-hooks.
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

  /// `begin` is called at the first gradient of a pass and throws UserError if no backward may begin now.
  /// `end` is called when the pass is complete, `fail` when it has thrown. `reducer` must outlive this
  /// object.
  BackwardPasses(GradientReducer& reducer, std::function<Start()> begin, std::function<void()> end,
                 std::function<void()> fail);
  ~BackwardPasses();
  BackwardPasses(const BackwardPasses&) = delete;
  BackwardPasses& operator=(const BackwardPasses&) = delete;

  /// Whether the last pass threw. The gradients of such a pass are incomplete.
  bool failed() const;
  /// To be called after the gradients of a failed pass have been discarded.
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
  std::function<void()> fail_;
  std::shared_ptr<Pass> pass_;  // the last pass
};

}  // namespace zerorun
