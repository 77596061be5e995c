// Marks in grad() of the trained parameters, by which the engine hears what the program does to gradients
// that the engine has taken. Owned by EngineState. Hooks of autograd run on its threads, everything else on
// the engine's thread.
//
// [Note: marks] After a backward the engine holds the gradients, and grad() would be empty. A mark in its
// place is a tensor without memory. model.zero_grad(), optimizer.zero_grad() and grad() = {} take marks away
// or zero them: the gradients of the window are dropped. Every other operator on a mark throws
// (clip_grad_norm_(), grad().norm()), and so does the next call after the program has set a gradient of its
// own. Before LibTorch accumulates a gradient, a hook takes the mark out of grad().
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zero/buckets.h"

namespace zerorun {

class GradientMarks {
 public:
  /// The parameters must be in their buckets, and require grad.
  explicit GradientMarks(std::span<const NamedParameter> trained);
  ~GradientMarks();
  GradientMarks(const GradientMarks&) = delete;
  GradientMarks& operator=(const GradientMarks&) = delete;

  /// Puts a mark into grad() of every parameter. Call this when a backward has ended.
  void place();
  /// Takes the marks away. Call this when the engine holds no gradients any more; a backward may be running.
  void clear();
  /// Whether the program has dropped the gradients since place(). Throws UserError if it has dropped those of
  /// some parameters only, or has set a gradient. `call`: the function to name in the error.
  bool dropped(const std::string& call);

 private:
  struct Mark;
  struct Recorder;
  struct Hook;
  struct Entry {
    bool is_marked() const;  // whether grad() is the mark

    std::string name;
    at::Tensor parameter;
    at::Tensor mark;
    Mark* owner;                                  // of the mark's storage
    std::shared_ptr<torch::autograd::Node> node;  // AccumulateGrad of the parameter, which has the hook
    bool taken = false;   // a backward has begun to accumulate, so grad() has no mark any more
    bool lost = false;    // there was no mark when that backward began
    bool is_set = false;  // a gradient of the program was there instead
  };

  void take(int index);

  std::vector<Entry> entries_;
  bool placed_ = false;
  std::shared_ptr<GradientMarks*>
      self_;  // shared with the hooks; points to null once this object is destroyed
};

}  // namespace zerorun
