// The errors of ranks whose waits have failed, in the ranks' store. So a rank that waits in one group of
// ranks for a rank that has failed in another can name the cause. Nothing is stored while there is only the
// group of all ranks, which all see the cause themselves. Owned by the communicators of a job. Any thread.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "comm/meeting/job_store.h"

namespace zerorun {

class FailureNotes {
 public:
  explicit FailureNotes(StorePointer store) : store_(std::move(store)) {}

  /// Call this when there is more than one group.
  void open() { open_ = true; }
  /// Publishes this rank's error, unless it has published one. Takes at most 0.5 s, plus kTimeToAnswer if the
  /// store does not answer, plus kTimeToRead on rank 0, which keeps the store. Never throws.
  void post(int rank, const std::string& error);
  /// Returns the error of the first of `ranks` that has published one, as "; rank 3 had failed before: ...",
  /// or an empty text. Never throws.
  std::string first_of(const std::vector<int>& ranks) const;

 private:
  StorePointer store_;
  std::atomic<bool> open_ = false;
  std::atomic<bool> posted_ = false;
};

}  // namespace zerorun
