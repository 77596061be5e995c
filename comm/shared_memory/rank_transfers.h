// The transfers of one rank in all of its groups. A wait in one group does this rank's part in all of them:
// otherwise a collective of another group, started ahead, would stand still meanwhile. Owned by the
// communicators and by each Work. Any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/process.h"
#include "comm/shared_memory/arena_scratch.h"
#include "comm/shared_memory/host_ranks.h"
#include "comm/shared_memory/shared_transfers.h"
#include "comm/thread_use.h"

namespace zerorun {

/// How a rank waits for a collective or a message. The functions that return an error return an empty text if
/// there is none.
struct RankWait {
  WaitInGroup what;
  std::string_view label;  // for the board
  std::string_view reason;
  std::function<bool()> reached;                 // does this rank's part
  std::function<std::string()> error;            // looked for at each wake-up
  std::function<std::string()> error_of_others;  // looked for now and then
  std::function<std::string()> suspicion;        // likewise: an error if it stays the same
};

class RankTransfers {
 public:
  explicit RankTransfers(std::unique_ptr<HostRanks> ranks);
  /// Waits until other ranks have read this rank's input, at most ten seconds. Without the wait, those ranks
  /// could read zeros, because freed memory reads as zeros.
  ~RankTransfers();

  /// Adds a group. Its transfers end when the last user has called leave() and every rank has read its input.
  SharedTransfers& add(std::unique_ptr<SharedTransfers> group);
  void leave(SharedTransfers& group);  // never throws
  /// Returns an empty text when `wait`, which was not, is reached, or the error that ends it. Time in which
  /// this process was stopped does not count: `deadline` moves.
  std::string wait(const RankWait& wait, Deadline& deadline);
  /// What a rank of the host has announced; empty: none has.
  std::string announced_failure() const;
  /// What rank `rank`, a number in the job, has failed in or waits for, for the end of a message: "; rank 1
  /// waits for ...", or an empty text.
  std::string doings_of(int rank) const;

  /// Whether another rank waits for something that this rank, which is in that group too, has not started.
  /// The caller holds mutex().
  bool is_awaited(const WaitInGroup& theirs) const;

  /// Guards the transfers of all groups.
  std::mutex& mutex() { return mutex_; }
  /// Does this rank's part of all collectives in flight that can go on. The caller holds mutex().
  void advance_all();
  /// Call this at each use of a communicator of this rank.
  void note_thread();

  HostRanks& host() { return *ranks_; }
  RankBoard& board() { return ranks_->board; }
  ArenaScratch& scratch() { return scratch_; }

 private:
  std::string await(const RankWait& wait, Deadline& deadline);
  std::string disagreement_of_messages();

  HomeProcess home_;
  const std::unique_ptr<HostRanks> ranks_;
  const std::chrono::microseconds spin_;
  ArenaScratch scratch_;
  ThreadUse threads_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<SharedTransfers>> groups_;
  bool is_ending_ = false;  // from then on groups_ stays as it is
};

/// The use of one group by its communicator and by its Works: the last one leaves the group.
struct GroupUse {
  GroupUse(std::shared_ptr<RankTransfers> all, SharedTransfers& own) : rank(std::move(all)), group(own) {}
  ~GroupUse() {
    if (home.is_current()) rank->leave(group);  // a forked child must not act for its parent
  }
  GroupUse(const GroupUse&) = delete;
  GroupUse& operator=(const GroupUse&) = delete;

  const std::shared_ptr<RankTransfers> rank;
  SharedTransfers& group;
  const HomeProcess home = {};
};

}  // namespace zerorun
