// Finds a rank of this host that makes no progress while others wait for it. Pure: gets what it sees from the
// Job, and reads no clock.
//
// [Note: hung ranks] Time counts only if it was lived through. The launcher counts its own rounds, of which
// each adds half a second at most, so a launcher that was stopped, or did not get to run, counts little of
// it. A rank waits for others only in rounds in which its process was not stopped, and another one hangs only
// in rounds in which some rank waits. So nothing is counted while a job is stopped as a whole. A rank that
// waits hangs only if its process has been stopped, or sleeps where nothing can wake it. A rank that a
// debugger has stopped does not hang: somebody looks at it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/activity_board.h"

namespace zerorun::launcher {

/// How often to look.
inline constexpr std::chrono::milliseconds kHungTick(250);

/// What is seen of one rank.
struct SeenRank {
  bool is_running = true;
  ActivityNow now;
  /// The letter in /proc/PID/stat of the thread that drives the rank; '?': not known.
  char state = '?';
};

class HungRanks {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using milliseconds = std::chrono::milliseconds;

  /// Numbers of ranks on this host.
  struct Found {
    size_t rank;
    std::vector<size_t> others;  // that make no progress either, and do not wait
    size_t waiting;              // a rank that waits
    milliseconds time;           // for which the rank has made no progress
  };

  HungRanks() = default;
  /// `hung_after`: how long a rank makes no progress until it hangs. `joining`: the same, if it is longer,
  /// before the rank has an engine and while it loads or saves.
  HungRanks(milliseconds hung_after, milliseconds joining) : hung_after_(hung_after), joining_(joining) {}

  /// Whether it is time to see().
  bool is_due(Time now) const { return !last_ || now - *last_ >= kHungTick; }
  /// Whether the states of processes matter now: a rank waits, and has not gone on since the last time.
  bool needs_states(const std::vector<SeenRank>& ranks) const;
  void see(const std::vector<SeenRank>& ranks, Time now);
  /// The rank that hangs.
  std::optional<Found> find() const;
  /// The same after rank `ended` has failed: whether it did so because its wait was over after `timeout`, and
  /// another rank hangs, for which it waited.
  std::optional<Found> find_behind(size_t ended, milliseconds timeout) const;

 private:
  struct Count {
    SeenRank seen;
    milliseconds waited{0};  // without progress, and not stopped
    milliseconds stuck{0};   // without progress and without a wait, while another rank waited
    bool goes_on = false;    // since the last round
  };

  milliseconds limit_of(const Count& count) const;
  std::optional<Found> find(size_t waiting, milliseconds slack) const;

  milliseconds hung_after_{0}, joining_{0};
  std::optional<Time> last_;
  std::vector<Count> counts_;  // by rank
};

}  // namespace zerorun::launcher
