// Starts one rank, or a program that starts an agent: a child process that leads its own process group, is
// killed when the launcher ends, and writes into two pipes. Used on the main thread.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "launcher/core_binding.h"
#include "launcher/guardian.h"
#include "launcher/signals.h"

namespace zerorun::launcher {

struct ProcessPlan {
  std::string name;                    // for messages: "rank 3"
  std::string file;                    // the program
  std::vector<std::string> arguments;  // argv, including argv[0]
  std::vector<std::string> environment;
  int in = -1;                               // becomes its stdin; -1: /dev/null
  int inherited = -1;                        // a descriptor that it keeps under the same number; -1: none
  const CoreBinding* binding = nullptr;      // the cores on which it runs; null: any
  std::optional<rlimit> open_files = {};     // its RLIMIT_NOFILE; absent: this process's
  std::function<void()> while_waiting = {};  // called every kControlTick while the system loads the program
};

struct RankProcess {
  pid_t pid = -1;  // also the number of its process group
  UniqueFd out;    // read ends, non-blocking
  UniqueFd err;
};

/// Thrown by start_process() if a signal interrupts the job while the system loads the program.
/// Signals::next() returns the signal.
struct Interrupted : Error {
  using Error::Error;
};

/// Throws UserError if the system cannot run the file, Error if it is out of processes or descriptors,
/// Interrupted.
RankProcess start_process(const ProcessPlan& plan, Signals& signals, const Guardian& guardian);

}  // namespace zerorun::launcher
