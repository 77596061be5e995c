// Decides between which uses of a backward each bucket's reduce-scatter starts, if the parameters come and
// go: [Note: order of reductions] in zero/gradient_reducer.h. Pure bookkeeping, no LibTorch. Owned by the
// gradient reducer, used under its lock.
//
// A place in a backward is the number of its uses so far, or the end. The schedule remembers the uses of
// several earlier backwards, and at which place each reduction started. While a backward has the uses of a
// remembered one, it is known, and its reductions are due at the same places. What the schedule returns
// depends only on the calls of note_use(), of start_backward(), leave_backward(), interrupt(),
// finish_backward() and forget(), and on the order given by set_order(). All of these are the same on all
// ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace zerorun {

class ReductionSchedule {
 public:
  /// `order`: all buckets that are reduced, in the order for backwards that are not known.
  explicit ReductionSchedule(std::vector<int> order);

  void set_order(std::vector<int> order) { order_ = std::move(order); }

  /// From now on no reduction has started.
  void start_backward();
  /// The next use is the first one of a backward.
  void leave_backward();
  /// The next use is outside of this backward, though inside of its time: autograd.grad() in a custom
  /// function, for example. Its uses do not count, so this backward is not known and will not be remembered.
  void interrupt() { interrupted_ = true; }
  void note_use(std::span<const int> buckets);
  void note_start(int bucket);
  /// No use of this backward follows.
  void end_uses() { ended_ = true; }
  /// Ends the backward; all its reductions have started. Remembers it if is_new(). The uses that follow may
  /// be those of the next backward, even before start_backward().
  void finish_backward();
  /// Forgets all earlier backwards, because their places were too early for some gradients.
  void forget();

  /// Whether a remembered backward begins with the uses so far.
  bool is_known() const { return known_ >= 0 && !interrupted_; }
  /// Whether no remembered backward has exactly the uses so far.
  bool is_new() const { return !is_known() || uses_.size() != known().uses.size(); }
  /// Whether the backward is known, and no remembered backward has a further use.
  bool is_after_last_use() const;
  /// The next bucket whose reduction is due at this place of a known backward.
  std::optional<int> due() const;
  /// The next bucket in order whose reduction has not started.
  std::optional<int> next() const;

 private:
  struct Start {
    int bucket;
    size_t place;  // a number of uses; the end counts as one more
  };
  struct Backward {
    std::vector<uint64_t> uses;  // a hash of each use's buckets
    std::vector<Start> starts;   // ascending places
  };

  const Backward& known() const { return remembered_[known_]; }
  bool begins_as_this(const Backward& backward) const;

  std::vector<int> order_;
  std::vector<char> started_;  // by bucket
  std::vector<uint64_t> uses_;
  std::vector<Start> starts_;
  bool ended_ = false;
  bool interrupted_ = false;
  std::deque<Backward> remembered_;  // the latest first
  int known_ = -1;                   // index of a remembered backward, or -1
};

}  // namespace zerorun
