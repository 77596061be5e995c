// Supervises the ranks of one host from start to end: passes on the ranks' output, ends all ranks when one
// fails or the user interrupts the job, and leaves no process running. Made and run once, on the main thread.
// Besides the guardian, only this class signals ranks.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/activity_board.h"
#include "base/join_board.h"
#include "base/memory_report.h"
#include "base/run_log_board.h"
#include "base/unique_fd.h"
#include "launcher/core_binding.h"
#include "launcher/guardian.h"
#include "launcher/hung_ranks.h"
#include "launcher/job_control.h"
#include "launcher/job_output.h"
#include "launcher/line_tail.h"
#include "launcher/missing_rank.h"
#include "launcher/oom_kills.h"
#include "launcher/orphans.h"
#include "launcher/rank_failure.h"
#include "launcher/rank_logs.h"
#include "launcher/rank_process.h"
#include "launcher/restarts.h"
#include "launcher/signals.h"
#include "launcher/timeline_rings.h"

namespace zerorun::launcher {

struct JobPlan {
  std::string file;                                    // the program that the ranks run
  std::vector<std::string> arguments;                  // argv, including argv[0]
  std::vector<std::vector<std::string>> environments;  // one per rank of this host
  std::vector<CoreBinding> bindings;                   // one per rank, or empty: not bound to cores
  int first_rank = 0;                                  // of this host
  uint32_t world_size = 1;                             // ranks of the whole job
  UniqueFd listening;                                  // socket for rank 0, named in its environment
  std::chrono::milliseconds grace{0};                  // between SIGTERM and SIGKILL after an interruption
  std::chrono::milliseconds failure_grace{0};          // between SIGTERM and SIGKILL after a rank has failed
  std::chrono::milliseconds timeout{0};                // of each collective
  std::chrono::milliseconds hung_after{0};             // see HungRanks; 0: ranks are not watched
  bool reports_failure = true;                         // false: the launcher of the whole job reports it
  std::vector<std::string> folders;                    // where ranks may write, for the report of a failure
  RankLogs logs;
  JoinBoard board;
  ActivityBoard activity;
  MemoryBoard memory;
  RunLogBoard run_log;
  TimelineRings timelines;
  /// A line for the user once the ranks are started; or null.
  std::function<std::string()> describe_start = {};
  Judge judge = {};  // or null
};

class Job {
 public:
  /// `control`: the connection to the launcher of a job on several hosts; null if the job has this host only.
  Job(JobPlan plan, JobOutput& output, Signals& signals, const Guardian& guardian,
      JobControl* control = nullptr);
  /// Kills the ranks that an exception has left running.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Starts the ranks, waits until all have ended and their output is written; returns the exit code.
  /// Throws UserError or Error if a rank cannot be started.
  int run();
  /// The signal that interrupted the job, if one did before a rank failed.
  std::optional<int> interrupted_by() const { return interrupted_by_; }
  /// Whether a signal interrupted the job, or nobody reads its output any more, at any time.
  bool is_unwanted() const { return is_unwanted_; }
  /// Whether the launcher ordered this host's ranks to end, or was lost, while ranks were still running.
  bool was_told_to_end() const { return told_to_end_; }

 private:
  using Clock = std::chrono::steady_clock;

  // running -> ending (SIGTERM sent) -> killing (SIGKILL sent) -> flushing (only output is left) -> over; the
  // phases between running and over may be skipped.
  enum class Phase { running, ending, killing, flushing, over };

  struct Rank {
    RankProcess process;
    LineTail last_lines;
    std::optional<int> status;  // from waitpid(), once the rank has ended
    bool group_exists = true;   // false: do not signal the group, its number may be reused
  };

  void start_ranks();
  void move_to(Phase phase);
  void enter_phase_that_is_due();
  void begin_ending(std::chrono::milliseconds grace);
  void begin_killing();
  void begin_flushing();

  void report_stopped_ranks();

  void wait_for_something();
  void handle_events();
  void obey_control();
  void handle_signals();
  void handle_interruption(int signal);
  void reap();
  void handle_rank_end(int rank);
  void look_for_empty_groups();
  void look_for_missing_rank();
  bool watches_for_hung_ranks() const;
  void look_for_hung_rank();
  bool ended_behind_hung_rank(int rank);
  void end_hung_rank(const HungRanks::Found& found);
  std::string describe_hung_rank(const HungRanks::Found& found, pid_t process) const;
  void signal_groups(int signal);
  void end_new_orphans();
  void kill_everything();
  std::vector<pid_t> own_children() const;  // the ranks and the guardian
  std::vector<pid_t> orphans() const;

  enum class ReadResult { some, nothing, end };
  ReadResult read_some(int rank, Stream stream);
  void drain(int rank);

  bool all_ranks_ended() const;
  bool all_groups_gone() const;
  /// The rank's number in the job, as text. `rank`: its number on this host.
  std::string name_of(size_t rank) const;
  void report_leftovers();
  void report_survivors();
  void note_in_run_log();
  void report_failure();
  void let_judge();

  JobPlan plan_;
  JobOutput& output_;
  Signals& signals_;
  const Guardian& guardian_;
  JobControl* control_;
  std::vector<Rank> ranks_;
  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;  // of the current phase
  std::optional<RankFailure> failure_;         // of the rank that failed first
  MissingRank missing_rank_;
  HungRanks hung_ranks_;
  Orphans orphans_;
  OomCounts oom_before_;
  std::optional<int> interrupted_by_;
  Clock::time_point interrupted_at_;
  bool told_to_end_ = false;
  bool is_unwanted_ = false;
  bool has_survivors_ = false;
  AttemptTimes times_;
  std::string buffer_;
};

}  // namespace zerorun::launcher
