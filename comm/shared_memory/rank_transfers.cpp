#include "comm/shared_memory/rank_transfers.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace zerorun {
namespace {

// How long the destructor waits for other ranks to read the input of collectives for which wait() was never
// called.
constexpr std::chrono::milliseconds kPatienceWithReaders(10'000);

}  // namespace

RankTransfers::RankTransfers(std::unique_ptr<HostRanks> ranks)
    : ranks_(std::move(ranks)), scratch_(*ranks_->arena) {}

RankTransfers::~RankTransfers() {
  if (!home_.is_current()) return;
  is_ending_ = true;
  const Deadline deadline(kPatienceWithReaders);
  try {
    for (const auto& group : groups_) {
      if (!group->await_readers(deadline)) return;
    }
  } catch (const std::exception&) {
    // Ignored: the collective's own start() or wait() has thrown this already.
  }
}

SharedTransfers& RankTransfers::add(std::unique_ptr<SharedTransfers> group) {
  std::lock_guard lock(mutex_);
  return *groups_.emplace_back(std::move(group));
}

void RankTransfers::leave(SharedTransfers& group) {
  std::lock_guard lock(mutex_);
  group.leave();
  try {
    advance_all();
  } catch (const std::exception&) {
    // Ignored for the same reason as in the destructor.
  }
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
