// Publishes in the ranks' store which collective each rank waits for. So an error can distinguish ranks that
// wait for a different collective from ranks that are missing. Owned by a communicator. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/meeting/job_store.h"

namespace zerorun {

// Ranks are numbers in the job, or, for NCCL, indices in the group.

/// A collective or a message that a rank waits for. `agreed` must be the same on all ranks; `words` appears
/// in messages.
struct PendingCollective {
  std::string agreed;  // "all_gather of bucket 3, 128 elements"
  std::string words;   // "all_gather of bucket 3 for aten::addmm on h.0.weight"
};
/// `numel` is the number of elements of this rank's part.
PendingCollective pending_collective_of(const CollectiveCall& call, int64_t numel);

/// For each rank, the collectives that it waits for. No value if the store is gone.
using PendingCollectives = std::optional<std::vector<std::vector<PendingCollective>>>;

class WaitBoard {
 public:
  WaitBoard(StorePointer store, int rank) : store_(std::move(store)), rank_(rank) {}

  /// Call this after a failed wait. From then on the communicator's connections are unusable.
  void mark_broken() { broken_ = true; }
  bool broken() const { return broken_; }

  /// Returns the error to throw if one of `ranks` waits for a collective other than `call`. Takes at most 0.5
  /// s, plus kTimeToAnswer if the store does not answer, plus kTimeToRead on rank 0.
  std::optional<std::string> disagreement(const CollectiveCall& call, const std::vector<int>& ranks) const;

  /// Publishes that this rank's wait for `mine` has failed, and returns what `rank` waits for, for the end of
  /// a message: "; rank 0 waits for ...", or an empty text if that is not known. Takes as long as
  /// disagreement().
  std::string words_of_wait(const PendingCollective& mine, int rank) const;

  /// Publishes that this rank's wait for `call` has failed, so that ranks whose waits fail later can name it.
  /// Takes a second more on rank 0, which keeps the store. Never throws.
  void publish_failed(const CollectiveCall& call) const;
  /// Publishes the collectives that this rank waits for, replacing its earlier list. Never throws: it ignores
  /// errors, because rank 0 may have ended and the store with it.
  void publish(const std::vector<PendingCollective>& waiting) const;
  /// Returns the lists that the ranks have published, by rank. This rank's own list is left empty.
  PendingCollectives read_all(int world_size) const;

  /// Publishes one text to all ranks, replacing the text that any rank published before.
  void post_for_all(const std::string& text) const;
  /// Returns the text from post_for_all(), or an empty text if there is none.
  std::string posted_for_all() const;

 private:
  std::optional<std::string> compare(const PendingCollective& mine, const std::vector<int>& ranks) const;

  StorePointer store_;
  int rank_;
  std::atomic<bool> broken_ = false;
};

/// Makes the error message for a wait that missed its deadline. The rank waited for `mine`; `all` has the
/// lists that the ranks have published. `ranks`: by rank, its number in the job, which the message names;
/// empty: the same.
std::string explain_missed(int rank, const PendingCollective& mine, const PendingCollectives& all,
                           std::chrono::milliseconds timeout, const std::vector<int>& ranks = {});
/// Makes the error message for a wait that missed its deadline if the store does not answer. Then the other
/// ranks' lists are unknown.
std::string explain_missed_in_silence(const PendingCollective& mine, std::chrono::milliseconds timeout);

}  // namespace zerorun
