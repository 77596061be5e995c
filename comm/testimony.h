// Tells ranks that are out of step from ranks that are missing: a rank that waits in vain says in the
// rendezvous' store what for. Owned by a communicator; any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/job_store.h"

namespace zerorun {

/// What a rank waits for: `agreed` is what must be the same on all ranks, `words` is for messages.
struct Statement {
  std::string agreed;  // "all_gather of bucket 3, 128 elements"
  std::string words;   // "all_gather of bucket 3 for aten::addmm on h.0.weight"
};
/// `numel`: elements that this rank brings.
Statement statement_of(const CollectiveCall& call, int64_t numel);

/// What each rank waits for, by rank; of those that wait for nothing, nothing. None: the store has gone.
using Statements = std::optional<std::vector<std::vector<Statement>>>;

/// How long rank 0, which keeps the store, stays for the others to read what it has stated before it reports
/// its own error, and so perhaps ends.
inline constexpr std::chrono::milliseconds kTimeToRead(250);

class Testimony {
 public:
  Testimony(StorePointer store, int rank) : store_(std::move(store)), rank_(rank) {}

  /// A wait has failed: the connections are of no more use.
  void mark_broken() { broken_ = true; }
  bool broken() const { return broken_; }

  /// The error to throw when one of `ranks` waits for something else than `call`. Takes half a second at
  /// most, kTimeToAnswer more if the store does not answer, and a quarter more on rank 0.
  std::optional<std::string> disagreement(const CollectiveCall& call, const std::vector<int>& ranks) const;

  /// Says what this rank waits for at present, in place of what it has said before. Never throws: the store
  /// may have gone with rank 0.
  void state(const std::vector<Statement>& waiting) const;
  /// What each rank says at present; of this one, nothing.
  Statements statements(int world_size) const;

  /// What one rank tells all others, in place of what was told before; and that, empty if there is nothing.
  void tell_all(const std::string& text) const;
  std::string told_to_all() const;

 private:
  std::optional<std::string> compare(const Statement& mine, const std::vector<int>& ranks) const;

  StorePointer store_;
  int rank_;
  std::atomic<bool> broken_ = false;
};

/// The error of a rank that has waited in vain for `mine`, from what all ranks say.
std::string explain_missed(int rank, const Statement& mine, const Statements& all,
                           std::chrono::milliseconds timeout);
/// And of one that could not learn what they say: the store does not answer.
std::string explain_missed_in_silence(const Statement& mine, std::chrono::milliseconds timeout);

}  // namespace zerorun
