// How a rank waits for collectives in shared memory, and the errors that end a wait.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/timeline.h"
#include "base/wait_for_ranks.h"
#include "comm/shared_memory/rank_transfers.h"
#include "comm/shared_memory/shared_transfers.h"

namespace zerorun {
namespace {

using std::chrono::milliseconds;

void remove(std::vector<int>& ranks, const auto& condition) {
  if (!std::ranges::all_of(ranks, condition)) std::erase_if(ranks, condition);
}

}  // namespace

void SharedTransfers::await(Transfer& transfer, Condition done) {
  const std::string error = wait_for(transfer, done, timeout_);
  if (error.empty()) return;
  all_.board().say_failed(error);
  throw CommError(error);
}

std::string SharedTransfers::wait_for(Transfer& transfer, Condition done, milliseconds timeout) {
  if (reached(transfer, done)) return "";
  const WaitForRanks wait(TimelineName::wait_for_ranks, timeline::is_on() ? first_absent(transfer) : -1);
  Deadline deadline(timeout);
  const auto is_reached = [&] { return reached(transfer, done); };
  const auto error = [&] { return disagreement_of(transfer); };
  const auto error_of_rank = [&] { return error_of_others(transfer, done, deadline); };
  const auto suspicion = [&] { return suspicion_of_order(transfer); };
  return all_.wait({.what = {.group = group_.id, .which = transfer.which},
                    .label = transfer.call.label,
                    .reason = transfer.call.reason,
                    .reached = std::ref(is_reached),  // a reference needs no memory of its own
                    .error = std::ref(error),
                    .error_of_others = std::ref(error_of_rank),
                    .suspicion = std::ref(suspicion)},
                   deadline);
}

// Advances `transfer` first, then all others, because other ranks may wait for them.
bool SharedTransfers::reached(Transfer& transfer, Condition done) {
  std::lock_guard lock(all_.mutex());
  advance(transfer);
  if (!done(transfer)) all_.advance_all();
  return done(transfer);
}

std::string SharedTransfers::disagreement_of(const Transfer& transfer) const {
  std::lock_guard lock(all_.mutex());
  return transfer.disagreement;
}

// The error if the process of a rank that `transfer` needs has ended, or if the deadline has passed.
std::string SharedTransfers::error_of_others(Transfer& transfer, Condition done, const Deadline& deadline) {
  const std::vector<int> ended = all_.host().processes.ended();
  const bool late = Deadline::Clock::now() >= deadline.end();
  if (ended.empty() && !late) return "";
  if (reached(transfer, done)) return "";  // the rank did its part before its process ended
  const std::vector<int> missing = absent(transfer);
  std::vector<int> gone = missing;
  std::erase_if(gone, [&](int rank) { return !std::ranges::binary_search(ended, in_job(rank)); });
  if (gone.empty() && !late) return "";
  if (std::string disagreement = out_of_step(transfer, missing); !disagreement.empty()) return disagreement;
  const std::string what = describe(transfer.call);
  const std::vector<int> ranks = in_job(blamed(transfer, gone.empty() ? missing : gone));
  if (!gone.empty()) return what + ": " + words_of_ended(ranks) + cause_elsewhere(ranks);
  return missed_deadline(what, ranks, deadline.timeout()) + cause_elsewhere(ranks);
}

// The error, if it stays, that a rank that `transfer` needs waits for something that this rank has not
// started. Both then wait for ever, unless one of them has another thread that starts what is missing.
std::string SharedTransfers::suspicion_of_order(const Transfer& transfer) const {
  const RankBoard& board = all_.board();
  if (board.is_threaded(in_job(group_.rank))) return "";
  std::vector<int> ranks = absent(transfer);
  std::erase_if(ranks, [&](int rank) { return board.is_threaded(in_job(rank)); });
  return out_of_step(transfer, ranks);
}

// Of the ranks that absent() returns, the first one as a number in the job.
int SharedTransfers::first_absent(const Transfer& transfer) const {
  std::lock_guard lock(all_.mutex());
  const int rank = transfer.taken ? transfer.finished : transfer.posted;
  return rank < world_size() ? in_job(rank) : -1;
}

// Returns the other ranks that have not posted. If this rank already has its output, returns those that have
// not finished instead.
std::vector<int> SharedTransfers::absent(const Transfer& transfer) const {
  std::lock_guard lock(all_.mutex());
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size(); ++rank) {
    const bool there = transfer.taken ? control_.has_finished(rank, transfer.which)
                                      : control_.has_posted(rank, transfer.which);
    if (!there && rank != group_.rank) ranks.push_back(rank);
  }
  return ranks;
}

// Returns the ranks to name in the error. Removes from `absent` the ranks that have failed themselves, then
// the ranks that wait for a collective that this rank has already posted. A removal that would leave no rank
// is skipped.
std::vector<int> SharedTransfers::blamed(const Transfer& transfer, const std::vector<int>& absent) const {
  std::vector<int> ranks = absent;
  const RankBoard& board = all_.board();
  remove(ranks, [&](int rank) { return board.has_failed(in_job(rank)); });
  std::lock_guard lock(all_.mutex());
  if (transfer.taken) return ranks;
  remove(ranks, [&](int rank) {
    const auto theirs = board.waiting(in_job(rank));
    return theirs && !theirs->message && theirs->group == group_.id && has_started(theirs->which);
  });
  return ranks;
}

// Returns the error if a rank in `absent` waits for a collective or message, of this group or of another one,
// that this rank has not started, or if another collective in flight has a disagreement. Returns an empty
// text otherwise.
std::string SharedTransfers::out_of_step(const Transfer& transfer, const std::vector<int>& absent) const {
  std::lock_guard lock(all_.mutex());
  for (const auto& other : under_way_) {
    if (!other->disagreement.empty()) return other->disagreement;
  }
  if (transfer.taken) return "";
  const RankBoard& board = all_.board();
  for (const int rank : in_job(absent)) {
    const auto theirs = board.waiting(rank);
    if (!theirs || !all_.is_awaited(*theirs)) continue;
    return describe_disagreement(in_job(group_.rank), describe(transfer.call), rank,
                                 board.words_of_wait(rank));
  }
  return "";
}

// `ranks`: as numbers in the job.
std::string SharedTransfers::words_of_ended(const std::vector<int>& ranks) const {
  std::string processes;
  for (const int rank : ranks) {
    processes += (processes.empty() ? "" : ", ") + std::to_string(all_.host().processes.process(rank));
  }
  return name_ranks(ranks) + (ranks.size() == 1 ? " has ended (process " : " have ended (processes ") +
         processes + ")";
}

// What the first of `ranks`, numbers in the job, did in another group, or with a message, instead: it has
// failed there, or waits.
std::string SharedTransfers::cause_elsewhere(const std::vector<int>& ranks) const {
  const RankBoard& board = all_.board();
  for (const int rank : ranks) {
    const auto wait = board.waiting(rank);
    if (!wait || (wait->group == group_.id && !wait->message)) continue;
    if (std::string words = all_.doings_of(rank); !words.empty()) return words;
  }
  return "";
}

}  // namespace zerorun
