// How much work a process has done: CPU time of all its threads, and the instructions that they have retired
// where the kernel counts those. Both are much the same on a machine that is busy with other things, where
// wall-clock times are not. Make one before the process has threads; used by one thread.
#pragma once

#include <optional>

namespace zerorun {

struct WorkDone {
  double cpu_seconds = 0;
  std::optional<double> instructions;  // in user space; absent where the kernel does not let it
};

class WorkMeter {
 public:
  WorkMeter();
  ~WorkMeter();
  WorkMeter(const WorkMeter&) = delete;
  WorkMeter& operator=(const WorkMeter&) = delete;

  /// Since the process began, or since the meter was made.
  WorkDone so_far() const;

 private:
  int counter_;  // a file descriptor; -1: none
};

}  // namespace zerorun
