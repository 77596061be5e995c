#include "comm/meeting/wait_board.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "comm/deadline.h"

namespace zerorun {
namespace {

constexpr char kPostedForAll[] = "posted";
constexpr std::chrono::milliseconds kStorePatience(500);
// Like kTimeToRead, if other ranks fail one after the other because the ranks that they wait for have failed.
constexpr std::chrono::milliseconds kTimeToReadInTurn(1000);
// The deadline of the calls to the store that are made for the NCCL watchdog. The watchdog itself does not
// wait that long: the calls run in another thread, and it waits at most 3 s for that thread
// (cuda/nccl_watchdog.cpp).
constexpr std::chrono::seconds kStoreLimit(10);

std::string board_key(int rank) {
  return "waiting/" + std::to_string(rank);
}

// Encodes each collective as two lines.
std::string encoded(const std::vector<PendingCollective>& collectives) {
  std::string text;
  for (const PendingCollective& collective : collectives)
    text += collective.agreed + "\n" + collective.words + "\n";
  return text;
}

std::vector<PendingCollective> decoded(const std::string& text) {
  std::istringstream lines(text);
  std::vector<PendingCollective> collectives;
  for (PendingCollective one; std::getline(lines, one.agreed) && std::getline(lines, one.words);) {
    collectives.push_back(one);
  }
  return collectives;
}

bool contains(const std::vector<PendingCollective>& collectives, const PendingCollective& mine) {
  return std::ranges::any_of(collectives, [&](const auto& other) { return other.agreed == mine.agreed; });
}

}  // namespace

PendingCollective pending_collective_of(const CollectiveCall& call, int64_t numel) {
  return {std::string(name_of(call.kind)) + " of " + call.label + ", " + std::to_string(numel) + " elements",
          describe(call)};
}

std::optional<std::string> WaitBoard::disagreement(const CollectiveCall& call,
                                                   const std::vector<int>& ranks) const {
  std::optional<std::string> found;
  try {
    found = compare(pending_collective_of(call, call.input.numel()), ranks);
  } catch (const CommError&) {
    // Ignored. The store does not answer, or is gone because rank 0 has ended.
  }
  if (found && rank_ == 0) std::this_thread::sleep_for(kTimeToRead);
  return found;
}

// Publishes `mine`, and describes the first of `ranks` that waits for a different collective.
std::optional<std::string> WaitBoard::compare(const PendingCollective& mine,
                                              const std::vector<int>& ranks) const {
  const Deadline deadline(kStorePatience);
  store_->set(board_key(rank_), encoded({mine}), deadline);
  for (int other : ranks) {
    const auto said = store_->await(board_key(other), deadline);
    if (!said) break;  // the rank has published nothing by the deadline
    const std::vector<PendingCollective> theirs = decoded(*said);
    if (theirs.empty() || contains(theirs, mine)) continue;
    return describe_disagreement(rank_, mine.words, other, theirs.front().words);
  }
  return std::nullopt;
}

std::string WaitBoard::words_of_wait(const PendingCollective& mine, int rank) const {
  std::string found;
  try {
    const Deadline deadline(kStorePatience);
    store_->set(board_key(rank_), encoded({mine}), deadline);
    const std::vector<PendingCollective> theirs =
        decoded(store_->await(board_key(rank), deadline).value_or(""));
    if (!theirs.empty()) found = "; rank " + std::to_string(rank) + " waits for " + theirs.front().words;
  } catch (const CommError&) {
    // Ignored for the same reason as in disagreement().
  }
  if (rank_ == 0) std::this_thread::sleep_for(kTimeToRead);
  return found;
}

void WaitBoard::publish_failed(const CollectiveCall& call) const {
  try {
    store_->set(board_key(rank_), encoded({pending_collective_of(call, call.input.numel())}),
                Deadline(kStorePatience));
  } catch (const CommError&) {
    // Ignored for the same reason as in publish().
  }
  if (rank_ == 0) std::this_thread::sleep_for(kTimeToReadInTurn);
}

void WaitBoard::publish(const std::vector<PendingCollective>& waiting) const {
  try {
    store_->set(board_key(rank_), encoded(waiting), Deadline(kStoreLimit));
  } catch (const CommError&) {
    // Ignored, because ranks that call read_all() notice by themselves that the store is gone.
  }
}

PendingCollectives WaitBoard::read_all(int world_size) const {
  const Deadline deadline(kStoreLimit);
  std::vector<std::vector<PendingCollective>> all(world_size);
  try {
    for (int rank = 0; rank < world_size; ++rank) {
      if (rank == rank_) continue;
      if (const auto said = store_->find(board_key(rank), deadline)) all[rank] = decoded(*said);
    }
  } catch (const CommError&) {
    return std::nullopt;
  }
  return all;
}

void WaitBoard::post_for_all(const std::string& text) const {
  try {
    store_->set(kPostedForAll, text, Deadline(kStoreLimit));
  } catch (const CommError&) {
    // Ignored for the same reason as in publish().
  }
}

std::string WaitBoard::posted_for_all() const {
  try {
    return store_->find(kPostedForAll, Deadline(kStoreLimit)).value_or("");
  } catch (const CommError&) {
    return "";
  }
}

std::string explain_missed(int rank, const PendingCollective& mine, const PendingCollectives& all,
                           std::chrono::milliseconds timeout, const std::vector<int>& ranks) {
  const auto in_job = [&](int of) { return ranks.empty() ? of : ranks[static_cast<size_t>(of)]; };
  if (!all) {
    return missed_end(mine.words, timeout) +
           ", and rank 0, which keeps the store of all ranks, has probably ended";
  }
  std::vector<int> silent;
  std::optional<int> elsewhere;
  for (int other = 0; other < static_cast<int>(all->size()); ++other) {
    if (other == rank) continue;
    if ((*all)[other].empty()) {
      silent.push_back(in_job(other));
    } else if (!elsewhere && !contains((*all)[other], mine)) {
      elsewhere = other;
    }
  }
  if (!silent.empty()) return missed_deadline(mine.words, silent, timeout);
  if (elsewhere) {
    return describe_disagreement(in_job(rank), mine.words, in_job(*elsewhere),
                                 (*all)[*elsewhere].front().words);
  }
  return missed_end(mine.words, timeout) +
         ", although all ranks take part: set a larger --timeout if transfers take that long; "
         "NCCL_DEBUG=INFO shows what NCCL does";
}

std::string explain_missed_in_silence(const PendingCollective& mine, std::chrono::milliseconds timeout) {
  return missed_end(mine.words, timeout) + ", and " + words_of_silence("rank 0");
}

}  // namespace zerorun
