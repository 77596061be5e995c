// How a rank waits for collectives in shared memory, and the errors that end a wait.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/shared_memory/shared_transfers.h"

namespace zerorun {
namespace {

using std::chrono::milliseconds;

// How often a waiting rank looks for ranks that have ended, or that wait for another collective.
constexpr milliseconds kLook(250);
// How long two ranks must have waited for different collectives before this is an error.
constexpr milliseconds kCertain(1000);

void remove(std::vector<int>& ranks, const auto& condition) {
  if (!std::ranges::all_of(ranks, condition)) std::erase_if(ranks, condition);
}

}  // namespace

void SharedTransfers::await(Transfer& transfer, Condition done, milliseconds timeout) {
  if (reached(transfer, done)) return;
  if (threads_.is_another()) control_.say_threaded();
  const Deadline deadline(timeout);
  Stuck stuck;
  auto look = Deadline::Clock::now() + kLook;
  control_.say_waiting(transfer.which);
  for (;;) {
    const uint32_t bell = control_.bell();
    if (reached(transfer, done)) break;
    const auto now = Deadline::Clock::now();
    if (now >= look || now >= deadline.end()) {
      check_on_others(transfer, done, deadline);
      check_order(transfer, stuck);
      look = now + kLook;
    }
    control_.sleep(bell, spin_, std::min(kLook, deadline.remaining()));
  }
  control_.say_waiting(std::nullopt);
}

// Advances `transfer` first, then all others, because other ranks may wait for them. Throws if the ranks
// disagree about `transfer`.
bool SharedTransfers::reached(Transfer& transfer, Condition done) {
  std::lock_guard lock(mutex_);
  advance(transfer);
  if (done(transfer)) return true;
  advance_all();
  if (!transfer.disagreement.empty()) fail(transfer.disagreement);
  return done(transfer);
}

// Throws if the process of a rank that `transfer` needs has ended, or if the deadline has passed.
void SharedTransfers::check_on_others(Transfer& transfer, Condition done, const Deadline& deadline) {
  const std::vector<int> ended = ranks_->processes.ended();
  const bool late = Deadline::Clock::now() >= deadline.end();
  if (ended.empty() && !late) return;
  if (reached(transfer, done)) return;  // the rank did its part before its process ended
  const std::vector<int> missing = absent(transfer);
  std::vector<int> gone;
  std::ranges::set_intersection(missing, ended, std::back_inserter(gone));
  if (gone.empty() && !late) return;
  const std::string disagreement = out_of_step(transfer, missing);
  if (!disagreement.empty()) fail(disagreement);
  const std::string what = describe(transfer.call);
  if (!gone.empty()) fail(what + ": " + words_of_ended(blamed(transfer, gone)));
  fail(missed_deadline(what, blamed(transfer, missing), deadline.timeout()));
}

// Throws if a rank that `transfer` needs waits for a collective that this rank has not started. Both then
// wait for ever, unless one of them has another thread that starts what is missing. The state of the other
// rank is read in parts, so the error must have been the same at several looks.
void SharedTransfers::check_order(const Transfer& transfer, Stuck& stuck) {
  if (control_.is_threaded(rank_)) return;
  std::vector<int> ranks = absent(transfer);
  std::erase_if(ranks, [&](int rank) { return control_.is_threaded(rank); });
  std::string error = out_of_step(transfer, ranks);
  const auto now = Deadline::Clock::now();
  if (error.empty() || error != stuck.error) {
    stuck = {std::move(error), now};
  } else if (now - stuck.since >= kCertain) {
    fail(error);
  }
}

// Returns the other ranks that have not posted. If this rank already has its output, returns those that have
// not finished instead.
std::vector<int> SharedTransfers::absent(const Transfer& transfer) const {
  std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    const bool there = transfer.taken ? control_.has_finished(rank, transfer.which)
                                      : control_.has_posted(rank, transfer.which);
    if (!there && rank != rank_) ranks.push_back(rank);
  }
  return ranks;
}

// Returns the ranks to name in the error. Removes from `absent` the ranks that have failed themselves, then
// the ranks that wait for a collective that this rank has already posted. A removal that would leave no rank
// is skipped.
std::vector<int> SharedTransfers::blamed(const Transfer& transfer, const std::vector<int>& absent) const {
  std::vector<int> ranks = absent;
  remove(ranks, [&](int rank) { return control_.has_failed(rank); });
  {
    std::lock_guard lock(mutex_);
    if (transfer.taken) return ranks;
  }
  remove(ranks, [&](int rank) {
    const auto theirs = control_.waiting(rank);
    return theirs && control_.has_posted(rank_, *theirs);
  });
  return ranks;
}

// Returns the error if a rank in `absent` waits for a collective that this rank has not started, or if
// another collective in flight has a disagreement. Returns an empty text otherwise.
std::string SharedTransfers::out_of_step(const Transfer& transfer, const std::vector<int>& absent) const {
  std::lock_guard lock(mutex_);
  for (const auto& other : under_way_) {
    if (!other->disagreement.empty()) return other->disagreement;
  }
  if (transfer.taken) return "";
  for (int rank : absent) {
    const auto theirs = control_.waiting(rank);
    if (!theirs || control_.has_posted(rank_, *theirs)) continue;
    return describe_disagreement(rank_, describe(transfer.call), rank, control_.words(rank, *theirs));
  }
  return "";
}

std::string SharedTransfers::words_of_ended(const std::vector<int>& ranks) const {
  std::string processes;
  for (int rank : ranks) {
    processes += (processes.empty() ? "" : ", ") + std::to_string(ranks_->processes.process(rank));
  }
  return name_ranks(ranks) + (ranks.size() == 1 ? " has ended (process " : " have ended (processes ") +
         processes + ")";
}

void SharedTransfers::fail(const std::string& message) {
  control_.say_failed();
  throw CommError(message);
}

}  // namespace zerorun
