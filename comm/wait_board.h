// Publishes in the ranks' store what each rank waits for, so that errors can tell ranks that are out of
// step from ranks that are missing. Owned by a communicator; any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/job_store.h"

namespace zerorun {

/// A collective that a rank waits for: `agreed` must be the same on all ranks, `words` is for messages.
struct PendingCollective {
  std::string agreed;  // "all_gather of bucket 3, 128 elements"
  std::string words;   // "all_gather of bucket 3 for aten::addmm on h.0.weight"
};
/// `numel`: elements of this rank's part.
PendingCollective pending_collective_of(const CollectiveCall& call, int64_t numel);

/// For each rank, the collectives that the rank waits for; no value if the store is gone.
using PendingCollectives = std::optional<std::vector<std::vector<PendingCollective>>>;

class WaitBoard {
 public:
  WaitBoard(StorePointer store, int rank) : store_(std::move(store)), rank_(rank) {}

  /// To be called when a wait has failed: from then on the connections are not usable.
  void mark_broken() { broken_ = true; }
  bool broken() const { return broken_; }

  /// The error to throw if one of `ranks` waits for a collective other than `call`. Takes at most half a
  /// second, kTimeToAnswer more if the store does not answer, and a quarter of a second more on rank 0.
  std::optional<std::string> disagreement(const CollectiveCall& call, const std::vector<int>& ranks) const;

  /// Publishes what this rank waits for now, replacing what it published before. Never throws: the store
  /// may be gone with rank 0.
  void publish(const std::vector<PendingCollective>& waiting) const;
  /// For each rank, what it has published; an empty list for this rank.
  PendingCollectives read_all(int world_size) const;

  /// Publishes a text of this rank for all others, replacing the one before.
  void post_for_all(const std::string& text) const;
  /// The text that was published for all ranks, empty if there is none.
  std::string posted_for_all() const;

 private:
  std::optional<std::string> compare(const PendingCollective& mine, const std::vector<int>& ranks) const;

  StorePointer store_;
  int rank_;
  std::atomic<bool> broken_ = false;
};

/// The error of a rank that has waited in vain for `mine`, from what all ranks have published.
std::string explain_missed(int rank, const PendingCollective& mine, const PendingCollectives& all,
                           std::chrono::milliseconds timeout);
/// The error if the store does not answer, so that it is unknown what the other ranks wait for.
std::string explain_missed_in_silence(const PendingCollective& mine, std::chrono::milliseconds timeout);

}  // namespace zerorun
