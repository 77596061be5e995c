// Detects which ranks' processes have ended. Identifies each process by a pidfd, since the system may reuse
// its process id. Owned by a rank. Any thread.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/unique_fd.h"

namespace zerorun {

class ProcessWatch {
 public:
  /// `rank`: this process's. `first`: the first rank that is watched.
  explicit ProcessWatch(int rank, int first = 0) : rank_(rank), first_(first) {}

  /// Adds the process of the next rank; call it in rank order. Throws Error.
  void add(pid_t pid);

  /// Returns the ranks whose process has ended, including zombies that their parent has not yet reaped.
  std::vector<int> ended() const;
  pid_t process(int rank) const { return processes_[rank - first_]; }

 private:
  int rank_;
  int first_;
  std::vector<pid_t> processes_;
  std::vector<UniqueFd> descriptors_;
};

}  // namespace zerorun
