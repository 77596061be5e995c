// Supervises the ranks of one job from start to end: passes on what they print, ends them all when one fails
// or the user says so, and leaves nothing behind. Made and run once, on the main thread; the only code that
// signals ranks.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/console.h"
#include "launcher/guardian.h"
#include "launcher/line_tail.h"
#include "launcher/rank_process.h"
#include "launcher/signals.h"

namespace zerorun {

struct JobPlan {
  std::string file;                                    // what is run
  std::vector<std::string> arguments;                  // the first is the program's name for itself
  std::vector<std::vector<std::string>> environments;  // one per rank
  UniqueFd listening;                                  // for rank 0, which its variables name
  std::chrono::milliseconds grace{3000};               // between SIGTERM and SIGKILL
};

class Job {
 public:
  Job(JobPlan plan, Console& console, Signals& signals, const Guardian& guardian);
  /// Kills what is still there: only after an exception.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Starts the ranks, returns when all have ended and their output is written: the launcher's exit code.
  /// Throws UserError or Error if a rank cannot be started.
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  // running -> ending (SIGTERM sent) -> killing (SIGKILL sent) -> flushing (only output is left) -> over; any
  // of the middle ones may be left out.
  enum class Phase { running, ending, killing, flushing, over };

  struct Rank {
    RankProcess process;
    LineTail last_lines;
    std::optional<int> status;  // of waitpid, once it has ended
    bool group_exists = true;   // false: its number must not be signalled any more
  };

  void move_to(Phase phase);
  void enter_phase_that_is_due();
  void begin_ending(std::chrono::milliseconds grace);
  void begin_killing();
  void begin_flushing();

  void wait_for_something();
  void handle_signals();
  void handle_interruption(int signal);
  void reap();
  void handle_rank_end(int rank);
  void look_for_empty_groups();
  void signal_groups(int signal);

  enum class ReadResult { some, nothing, end };
  ReadResult read_some(int rank, Stream stream);
  void drain(int rank);

  bool all_ranks_ended() const;
  bool all_groups_gone() const;
  void report_survivors();
  void report_failure();

  JobPlan plan_;
  Console& console_;
  Signals& signals_;
  const Guardian& guardian_;
  std::vector<Rank> ranks_;
  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;  // of the present phase
  std::optional<int> failed_rank_;             // the first one
  std::optional<int> interrupted_by_;
  Clock::time_point interrupted_at_;
  std::string buffer_;
};

}  // namespace zerorun
