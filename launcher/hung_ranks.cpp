#include "launcher/hung_ranks.h"

#include <algorithm>
#include <utility>

namespace zerorun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMostPerRound = 2 * kHungTick;

bool is_stopped(char state) {
  return state == 'T' || state == 't';
}

// The states in which a rank that waits is not the one that waits: nothing wakes it.
bool cannot_wake(char state) {
  return state == 'T' || state == 'D';
}

// Where a rank hangs more likely comes first: a stopped one, one that sleeps where nothing wakes it, one in
// the program's own code.
int order_of(const SeenRank& seen) {
  if (seen.state == 'T') return 0;
  if (seen.state == 'D') return 1;
  const bool is_in_program = seen.now.activity == Activity::no_engine ||
                             seen.now.activity == Activity::program || seen.now.activity == Activity::forward;
  return is_in_program ? 2 : 3;
}

}  // namespace

bool HungRanks::needs_states(const std::vector<SeenRank>& ranks) const {
  for (size_t rank = 0; rank < std::min(ranks.size(), counts_.size()); ++rank) {
    const ActivityNow& now = ranks[rank].now;
    if (waits_for_ranks(now) && now.changes == counts_[rank].seen.now.changes) return true;
  }
  return false;
}

void HungRanks::see(const std::vector<SeenRank>& ranks, Time now) {
  const milliseconds round =
      last_ ? std::min(std::chrono::duration_cast<milliseconds>(now - *last_), kMostPerRound)
            : milliseconds(0);
  last_ = now;
  counts_.resize(ranks.size());
  const auto is_waiting = [](const Count& count) {
    return waits_for_ranks(count.seen.now) && !cannot_wake(count.seen.state);
  };
  bool some_wait = false;  // really, in this round
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    Count& count = counts_[rank];
    const SeenRank& seen = ranks[rank];
    if (!seen.is_running) {  // what it did last stays
      count.seen.is_running = false;
      continue;
    }
    count.goes_on = seen.now.changes != count.seen.now.changes ||
                    waits_for_ranks(seen.now) != waits_for_ranks(count.seen.now);
    count.seen = seen;
    if (count.goes_on) {
      count.waited = count.stuck = milliseconds(0);
    } else if (is_waiting(count) && !is_stopped(seen.state)) {
      count.waited += round;
      some_wait = true;
    }
  }
  if (!some_wait) return;
  for (Count& count : counts_) {
    const bool is_stuck = !count.goes_on && !is_waiting(count) && count.seen.state != 't';
    if (count.seen.is_running && is_stuck) count.stuck += round;
  }
}

milliseconds HungRanks::limit_of(const Count& count) const {
  const Activity activity = count.seen.now.activity;
  // Whole files are read and written without a sign of life.
  const bool takes_long = activity == Activity::no_engine || activity == Activity::initializing ||
                          activity == Activity::loading || activity == Activity::saving;
  return takes_long ? std::max(hung_after_, joining_) : hung_after_;
}

std::optional<HungRanks::Found> HungRanks::find() const {
  for (size_t rank = 0; rank < counts_.size(); ++rank) {
    const Count& count = counts_[rank];
    if (!count.seen.is_running || count.waited < hung_after_) continue;
    if (auto found = find(rank, milliseconds(0))) return found;
  }
  return std::nullopt;
}

std::optional<HungRanks::Found> HungRanks::find_behind(size_t ended, milliseconds timeout) const {
  // The rank's own deadline may have come a little before its waits were seen.
  constexpr milliseconds kMostSlack(1000);
  if (ended >= counts_.size() || !waits_for_ranks(counts_[ended].seen.now)) return std::nullopt;
  const milliseconds limit = std::min(hung_after_, timeout);
  const milliseconds slack = std::min(kMostSlack, limit / 2);
  if (counts_[ended].waited < limit - slack) return std::nullopt;
  return find(ended, hung_after_ - limit + slack);
}

std::optional<HungRanks::Found> HungRanks::find(size_t waiting, milliseconds slack) const {
  std::vector<size_t> hung;
  for (size_t rank = 0; rank < counts_.size(); ++rank) {
    const Count& count = counts_[rank];
    if (rank != waiting && count.seen.is_running && count.stuck > milliseconds(0) &&
        count.stuck >= limit_of(count) - slack)
      hung.push_back(rank);
  }
  if (hung.empty()) return std::nullopt;
  const auto first = std::ranges::min_element(
      hung, {}, [&](size_t rank) { return std::pair(order_of(counts_[rank].seen), -counts_[rank].stuck); });
  const size_t rank = *first;
  hung.erase(first);
  return Found{.rank = rank, .others = hung, .waiting = waiting, .time = counts_[rank].stuck};
}

}  // namespace zerorun::launcher
