#include "zero/gather_trace.h"

#include <algorithm>
#include <utility>

namespace zerorun {
namespace {

constexpr size_t kMostUses = 1 << 15;

}  // namespace

const GatherPlan::Step* GatherTrace::follow(std::span<const int> buckets) {
  const size_t position = position_++;
  if (!following()) return nullptr;
  if (position < uses_.size() && std::ranges::equal(uses_[position].buckets, buckets)) {
    return &plan_.steps[position];
  }
  depart(position);
  return nullptr;
}

void GatherTrace::record(std::span<const int> buckets, std::string reason) {
  if (uses_.size() >= kMostUses && !ends_surely_) uses_.clear();
  uses_.push_back({{buckets.begin(), buckets.end()}, std::move(reason)});
}

void GatherTrace::depart(size_t position) {
  departed_ = true;
  ++departures_;
  uses_.resize(position);
}

bool GatherTrace::may_begin_again(std::span<const int> buckets) const {
  if (position_ < 2 || (following() && position_ < uses_.size())) return false;
  return std::ranges::equal(uses_[0].buckets, buckets);
}

void GatherTrace::finish(std::span<const int64_t> bucket_numel, const GatherLimits& limits) {
  if (position_ == 0) return;
  if (following() && position_ < uses_.size()) depart(position_);
  if (!following()) {
    std::vector<std::vector<int>> sets;
    for (const Use& use : uses_) sets.push_back(use.buckets);
    plan_ = plan_gathers(sets, bucket_numel, limits);
    planned_ = true;
    departed_ = false;
  }
  position_ = 0;
}

}  // namespace zerorun
