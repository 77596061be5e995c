#include "comm/shared_memory/rank_transfers.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace zerorun {

RankTransfers::RankTransfers(std::unique_ptr<HostRanks> ranks)
    : ranks_(std::move(ranks)), scratch_(*ranks_->arena) {}

RankTransfers::~RankTransfers() {
  is_ending_ = true;
  for (const auto& group : groups_) group->await_readers();
}

SharedTransfers& RankTransfers::add(std::unique_ptr<SharedTransfers> group) {
  std::lock_guard lock(mutex_);
  return *groups_.emplace_back(std::move(group));
}

void RankTransfers::leave(SharedTransfers& group) {
  std::lock_guard lock(mutex_);
  group.leave();
  advance_all();
}

const SharedTransfers* RankTransfers::find(uint64_t group) const {
  const auto found = std::ranges::find(groups_, group, [](const auto& one) { return one->id(); });
  return found == groups_.end() ? nullptr : found->get();
}

void RankTransfers::advance_all() {
  bool taken = false;
  for (const auto& group : groups_) taken = group->advance_all() || taken;
  if (!is_ending_) std::erase_if(groups_, [](const auto& group) { return group->has_ended(); });
  if (taken) board().ring_own();  // another thread may wait for one of these collectives
}

void RankTransfers::note_thread() {
  if (threads_.is_another()) board().say_threaded();
}

}  // namespace zerorun
