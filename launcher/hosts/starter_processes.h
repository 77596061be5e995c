// The processes of the launcher that start agents: ssh for each host, or one pdsh, mpirun or srun, and this
// host's own agent. Prints their output and keeps its last lines. Owned by the Cluster, used on the main
// thread.
#pragma once

#include <poll.h>
#include <sys/resource.h>

#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/console.h"
#include "launcher/guardian.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/line_tail.h"
#include "launcher/orphans.h"
#include "launcher/rank_process.h"
#include "launcher/signals.h"

namespace zerorun::launcher {

class StarterProcesses {
 public:
  struct Ended {
    std::string name;
    int node;         // the node whose agent it started; -1: all nodes
    int wait_status;  // from waitpid()
    std::vector<std::string> last_lines;
  };

  /// The first process prints as source `first_source` of `console`, the next one as `first_source` + 1, ...
  /// Raises this process's limit of open files to what the system allows: each ssh takes two descriptors, and
  /// its agent a third.
  StarterProcesses(Console& console, size_t first_source, Signals& signals, const Guardian& guardian);
  /// Sets the limit of open files back. All processes must have ended, or have been killed.
  ~StarterProcesses();
  StarterProcesses(const StarterProcesses&) = delete;
  StarterProcesses& operator=(const StarterProcesses&) = delete;

  /// Runs `file` with the arguments of `command`. If `file` is empty, runs the first of the command's
  /// candidates that exists instead. `inherited`: a descriptor that the process keeps; -1: none. Throws
  /// UserError.
  void start(const StartCommand& command, const std::string& file = {}, int inherited = -1);

  /// Appends entries for the output that the console can take now.
  void append_poll_entries(std::vector<pollfd>& entries);
  /// Reads available output. `first`: index of the first entry that the last append_poll_entries() appended.
  void read(const std::vector<pollfd>& entries, size_t first);
  /// Collects processes that have ended. Call after SIGCHLD.
  std::vector<Ended> reap();
  bool any_runs() const;
  /// Returns the last line with `text` that a process for all agents (pdsh, mpirun, srun) has printed.
  std::optional<std::string> find_line(std::string_view text) const;
  void signal_all(int signal) const;
  /// The child processes that killed starters and agents have left behind. For example, pdsh runs each ssh in
  /// a process group of its own. When pdsh is killed, they become children of this process (a subreaper).
  /// `keeper`: one that is none; absent: all are.
  std::vector<pid_t> orphans(std::optional<pid_t> keeper) const;

 private:
  struct Process {
    std::string name;
    int node;
    RankProcess process;
    int source;  // its number as a source of the console
    LineTail last_lines;
    std::optional<int> status = {};
  };
  bool read_some(Process& process, Stream stream);

  Console& console_;
  int next_source_;
  Signals& signals_;
  const Guardian& guardian_;
  Orphans orphans_;
  rlimit open_files_;  // as the user has set it
  std::list<Process> processes_;
  std::vector<std::pair<Process*, Stream>> polled_;  // in the order of the entries
  std::string buffer_;
};

}  // namespace zerorun::launcher
