// The environment variables of a rank, with torchrun's and DeepSpeed's names. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core_binding.h"
#include "launcher/placement.h"

namespace zerorun::launcher {

/// Values that all ranks of a job on this machine share.
struct JobEnvironment {
  Placement placement{{{"localhost", {0}}}};
  std::string master_addr;
  int master_port = 0;
  int listening_fd = -1;  // ZERORUN_LISTEN_FD, only for rank 0: the socket that holds the port
  std::string token;      // ZERORUN_JOB: distinguishes this job from others
  double timeout_seconds = 0;
  std::string device;                    // ZERORUN_DEVICE; empty: keeps the user's variable
  std::string comm;                      // ZERORUN_COMM; empty: keeps the user's variable
  int threads_per_rank = 1;              // OMP_NUM_THREADS, unless the user has set it
  std::vector<CoreBinding> bindings;     // one per rank of this host; empty: ranks are not bound
  std::string visible_devices;           // CUDA_VISIBLE_DEVICES; empty: keeps the user's variable
  std::string board;                     // ZERORUN_BOARD, for the launcher (base/join_board.h); empty: none
  std::string activity_board;            // ZERORUN_ACTIVITY_BOARD (base/activity_board.h); empty: none
  std::string memory_board;              // ZERORUN_MEMORY_BOARD (base/memory_report.h); empty: none
  std::string run_log_board;             // ZERORUN_RUN_LOG_BOARD (base/run_log_board.h); empty: none
  std::string timeline, timeline_steps;  // ZERORUN_TIMELINE and _STEPS; empty: keeps the user's variables
  std::vector<std::string> timeline_rings;  // ZERORUN_TIMELINE_RING, one per rank of this host, or none
  bool terminal = false;                    // ZERORUN_TERMINAL: the launcher's stdout is a terminal
  int restarts = 0;                         // ZERORUN_RESTARTS: how often the ranks have been started again
  std::string held_memory;                  // ZERORUN_HELD_MEMORY (base/held_memory.h); empty: none
  int full_world_size = 0;                  // ZERORUN_FULL_WORLD_SIZE (base/full_world.h); 0: not set
};

/// The variables of rank `rank` that differ from the environment `inherited` ("NAME=value" each). A variable
/// without value is removed.
std::map<std::string, std::optional<std::string>> rank_variables(const std::vector<std::string>& inherited,
                                                                 const JobEnvironment& job, int rank);

/// The environment `inherited` with the variables of rank `rank` set.
std::vector<std::string> rank_environment(const std::vector<std::string>& inherited,
                                          const JobEnvironment& job, int rank);

}  // namespace zerorun::launcher
