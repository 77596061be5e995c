// Runs this launcher again as a child process and collects what it prints. One thread waits for it; several
// may run at once.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace zerorun {

struct CapturedRun {
  int wait_status = 0;     // from waitpid()
  bool timed_out = false;  // it ran longer than `limit` and was ended
  std::string out, err;
};

/// `arguments`: without the program's name. After `limit` the child is ended by SIGTERM, and some seconds
/// later by SIGKILL. Throws Error if the system is out of processes or descriptors.
CapturedRun run_launcher(const std::vector<std::string>& arguments, std::chrono::milliseconds limit);

}  // namespace zerorun
