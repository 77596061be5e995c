#include "comm/shared_memory/rank_transfers.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/activity_board.h"
#include "base/cores.h"

namespace zerorun {
namespace {

using std::chrono::milliseconds;

// How often a waiting rank looks for ranks that have ended, or that wait for something else.
constexpr milliseconds kLook(250);
// How long two ranks must have waited for different things before this is an error.
constexpr milliseconds kCertain(1000);
// A sleep that ends so late was not the process's own: it was stopped, with the whole job if this rank's
// deadline is to matter.
constexpr milliseconds kStopped(2000);
// How long the destructor waits for other ranks to read the input of collectives for which wait() was never
// called.
constexpr milliseconds kPatienceWithReaders(10'000);

// How long a wait spins before it sleeps. Ranks spin only if every thread of every rank has a core: otherwise
// spinning would slow down the rank that is waited for. The spin is longer than a wake-up takes; with a
// shorter spin two ranks would keep finding each other asleep, and every collective would cost a wake-up.
std::chrono::microseconds spin_of(int ranks) {
  const bool own = count_usable_cores() >= ranks * at::get_num_threads();
  return std::chrono::microseconds(own ? 100 : 0);
}

}  // namespace

RankTransfers::RankTransfers(std::unique_ptr<HostRanks> ranks)
    : ranks_(std::move(ranks)), spin_(spin_of(ranks_->count)), scratch_(*ranks_->arena) {}

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

std::string RankTransfers::wait(const RankWait& wait, Deadline& deadline) {
  const bool is_message = wait.what.message.has_value();
  ShownWait shown(is_message ? "" : name_of(wait.what.which.kind), wait.label, wait.reason);
  std::string error = await(wait, deadline);
  if (!error.empty()) shown.give_up();
  return error;
}

// The state of another rank is read in parts, so a suspicion must have been the same at several looks.
std::string RankTransfers::await(const RankWait& wait, Deadline& deadline) {
  note_thread();
  std::string suspicion;
  Deadline::Clock::time_point suspected;
  auto look = Deadline::Clock::now() + kLook;
  {
    std::lock_guard lock(mutex_);  // other threads of this rank say there what they wait for
    board().say_waiting(wait.what, wait.label, wait.reason);
  }
  for (;;) {
    const uint32_t bell = board().bell();
    if (wait.reached()) break;
    if (std::string error = wait.error(); !error.empty()) return error;
    const auto now = Deadline::Clock::now();
    if (now >= look || now >= deadline.end()) {
      if (std::string error = announced_failure(); !error.empty()) return error;
      if (std::string error = wait.error_of_others(); !error.empty()) return error;
      if (std::string error = disagreement_of_messages(); !error.empty()) return error;
      std::string found = wait.suspicion();
      if (found.empty() || found != suspicion) {
        suspicion = std::move(found);
        suspected = now;
      } else if (now - suspected >= kCertain) {
        return suspicion;
      }
      look = now + kLook;
    }
    const auto asleep = Deadline::Clock::now();
    board().sleep(bell, spin_, std::min(kLook, deadline.remaining()));
    const auto slept = Deadline::Clock::now() - asleep;
    if (slept <= kStopped) continue;
    // What was seen before is old, and the other ranks may not have gone on yet.
    deadline.skip(slept - kLook);
    suspicion.clear();
    look = Deadline::Clock::now() + kLook;
  }
  board().say_waits_no_more();
  return "";
}

std::string RankTransfers::announced_failure() const {
  const int rank = ranks_->board.announcer();
  return rank < 0 ? "" : "rank " + std::to_string(rank) + " cannot go on: " + ranks_->board.failure(rank);
}

std::string RankTransfers::disagreement_of_messages() {
  std::lock_guard lock(mutex_);
  for (const auto& group : groups_) {
    if (std::string error = group->messages().disagreement(); !error.empty()) return error;
  }
  return "";
}

std::string RankTransfers::doings_of(int rank) const {
  const RankBoard& all = ranks_->board;
  const std::string name = "; rank " + std::to_string(rank);
  if (all.has_failed(rank)) return name + " had failed before: " + all.failure(rank);
  const std::string words = all.words_of_wait(rank);
  return words == kNoWait ? "" : name + " waits for " + words;
}

bool RankTransfers::is_awaited(const WaitInGroup& theirs) const {
  const auto found = std::ranges::find(groups_, theirs.group, [](const auto& one) { return one->id(); });
  if (found == groups_.end()) return false;
  return theirs.message ? (*found)->messages().is_awaited(*theirs.message)
                        : !(*found)->has_started(theirs.which);
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
