// Marks in grad() of the trained parameters, by which the engine hears what the program does to gradients
// that the engine has taken. Owned by EngineState. Hooks of autograd run on its threads, everything else on
// the engine's thread.
//
// [Note: marks] After a backward the engine holds gradients, and grad() would be empty. A mark in the place
// of each is a tensor without memory. model.zero_grad(), optimizer.zero_grad() and grad() = {} take marks
// away or zero them: the gradients of the window are dropped. Every other operator on a mark throws
// (clip_grad_norm_(), grad().norm()), and so does the next call after the program has set a gradient of its
// own. Before LibTorch accumulates a gradient, a hook empties grad().
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zero/buckets.h"
#include "zero/node_pointer.h"

namespace zerorun {

class GradientMarks {
 public:
  /// The parameters must be in their buckets, and require grad.
  explicit GradientMarks(std::span<const NamedParameter> trained);
  ~GradientMarks();
  GradientMarks(const GradientMarks&) = delete;
  GradientMarks& operator=(const GradientMarks&) = delete;

  /// Puts marks into grad() of the parameters that have had a gradient since clear(). Call this when a
  /// backward has ended.
  void place();
  /// The same for parameters with gradients of a checkpoint. `has_gradient`: by parameter.
  void place(std::span<const char> has_gradient);
  /// Takes the marks away. Call this when the engine holds no gradients any more. If a backward is running,
  /// the gradient that it has just brought counts as the first.
  void clear();
  /// Empties grad() of every parameter, except of the one to which a running backward has just brought its
  /// gradient.
  void empty();
  /// To be called when parameters are back in their buckets: a change of dtype in between (set_data()) makes
  /// LibTorch forget AccumulateGrad, and with it the hooks.
  void hook_again();
  /// Undoes what a backward has done that may not begin: its gradients go, and marks come back.
  void refuse();
  /// Whether the program has dropped the gradients since place(). Throws UserError if it has dropped those of
  /// some parameters only, or has set a gradient. `call`: the function to name in the error.
  bool dropped(const std::string& call);

 private:
  struct Mark;
  struct Recorder;
  struct Hook;
  struct Entry {
    bool is_marked() const;  // whether grad() is the mark
    bool is_gone() const;    // whether the program has dropped the gradient
    void make_view();
    void place();

    std::string name;
    at::Tensor parameter;
    NodePointer node;      // AccumulateGrad of the parameter, which has the hook
    c10::Storage storage;  // of the mark, also once the program has given the mark other data
    at::Tensor mark;
    Mark* owner = nullptr;  // of the storage
    bool held = false;      // the engine holds a gradient: a backward has ended by placing the mark
    bool taken = false;     // a backward has begun to accumulate, so grad() has no mark any more
    bool lost = false;      // there was no mark when that backward began
    bool is_set = false;    // a gradient of the program was there instead
  };

  void make_mark(Entry& entry) const;
  void take(int index);
  int current() const;

  std::vector<Entry> entries_;
  std::shared_ptr<Recorder> recorder_;
  int last_taken_ = -1;
  std::shared_ptr<GradientMarks*>
      self_;  // shared with the hooks; points to null once this object is destroyed
};

}  // namespace zerorun
