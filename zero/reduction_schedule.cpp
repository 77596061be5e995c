#include "zero/reduction_schedule.h"

#include <algorithm>
#include <utility>

#include "base/fnv1a.h"

namespace zerorun {
namespace {

// Programs with several kinds of backwards, such as a generator's and a discriminator's, have a few.
constexpr size_t kMostRemembered = 8;

uint64_t hash_of(std::span<const int> buckets) {
  uint64_t hash = kFnv1aStart;
  for (const int bucket : buckets) hash = fnv1a(hash, static_cast<uint64_t>(bucket));
  return hash;
}

}  // namespace

void ReductionSchedule::start_backward() {
  std::ranges::fill(started_, 0);
  starts_.clear();
}

void ReductionSchedule::leave_backward() {
  uses_.clear();
  starts_.clear();
  ended_ = false;
  known_ = remembered_.empty() ? -1 : 0;
}

void ReductionSchedule::note_use(std::span<const int> buckets) {
  uses_.push_back(hash_of(buckets));
  if (!is_known()) return;
  if (uses_.size() <= known().uses.size() && known().uses[uses_.size() - 1] == uses_.back()) return;
  const auto same =
      std::ranges::find_if(remembered_, [&](const Backward& backward) { return begins_as_this(backward); });
  known_ = same == remembered_.end() ? -1 : static_cast<int>(same - remembered_.begin());
}

void ReductionSchedule::note_start(int bucket) {
  started_[bucket] = 1;
  starts_.push_back({bucket, uses_.size() + (ended_ ? 1 : 0)});
}

void ReductionSchedule::finish_backward() {
  Backward latest;
  if (is_new()) {
    if (remembered_.size() == kMostRemembered) remembered_.pop_back();
    latest = {.uses = uses_, .starts = starts_};
  } else {
    latest = std::move(remembered_[known_]);
    remembered_.erase(remembered_.begin() + known_);
  }
  remembered_.push_front(std::move(latest));
  start_backward();
  leave_backward();
}

bool ReductionSchedule::begins_as_this(const Backward& backward) const {
  return backward.uses.size() >= uses_.size() &&
         std::equal(uses_.begin(), uses_.end(), backward.uses.begin());
}

bool ReductionSchedule::counts_here() const {
  if (!is_known()) return true;
  auto start = std::ranges::lower_bound(known().starts, uses_.size(), {}, &Start::place);
  for (; start != known().starts.end() && start->place == uses_.size(); ++start) {
    if (!started_[start->bucket]) return true;
  }
  return false;
}

}  // namespace zerorun
