// Measures the work of a process: the CPU time of all its threads and, if the kernel counts them, the
// instructions that these threads have retired. Unlike wall-clock time, both hardly change on a busy machine.
// Construct the meter before the process has other threads. Used by one thread.
#pragma once

#include <optional>

namespace zerorun {

struct WorkDone {
  double cpu_seconds = 0;
  std::optional<double> instructions;  // in user space; absent if the kernel does not count them
};

class WorkMeter {
 public:
  WorkMeter();
  ~WorkMeter();
  WorkMeter(const WorkMeter&) = delete;
  WorkMeter& operator=(const WorkMeter&) = delete;

  /// CPU time since the process began, instructions since the meter was made.
  WorkDone so_far() const;

 private:
  int counter_;  // file descriptor of the instruction counter; -1 if the kernel has none
};

}  // namespace zerorun
