// Decides at which uses of a backward the ranks count which buckets are complete, if the parameters come and
// go: [Note: order of gathers and reductions] in zero/gradient_reducer.h. Pure bookkeeping, no LibTorch.
// Owned by the gradient reducer, used under its lock.
//
// A place in a backward is the number of its uses so far, or the end. The schedule remembers the uses of
// several earlier backwards, and at which place each reduction started. While a backward has the uses of a
// remembered one, it is known, and the ranks count only at the places where one of its reductions started.
// All calls are the same on all ranks, and so is what the schedule returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace zerorun {

class ReductionSchedule {
 public:
  /// `buckets`: how many buckets are reduced.
  explicit ReductionSchedule(int buckets) : started_(buckets) {}

  /// From now on no reduction has started.
  void start_backward();
  /// The next use is the first one of a backward.
  void leave_backward();
  void note_use(std::span<const int> buckets);
  void note_start(int bucket);
  /// No use of this backward follows.
  void end_uses() { ended_ = true; }
  /// Ends the backward; all its reductions have started. Remembers it if is_new(). The uses that follow may
  /// be those of the next backward, even before start_backward().
  void finish_backward();

  /// Whether a remembered backward begins with the uses so far.
  bool is_known() const { return known_ >= 0; }
  /// Whether no remembered backward has exactly the uses so far.
  bool is_new() const { return !is_known() || uses_.size() != known().uses.size(); }
  /// Whether the ranks count at this place. If not, the backward is known, and no reduction that has yet to
  /// start started here.
  bool counts_here() const;

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

  std::vector<char> started_;  // by bucket
  std::vector<uint64_t> uses_;
  std::vector<Start> starts_;
  bool ended_ = false;
  std::deque<Backward> remembered_;  // the latest first
  int known_ = -1;                   // index of a remembered backward, or -1
};

}  // namespace zerorun
