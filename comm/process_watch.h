// Which processes of other ranks have ended. Holds each process by a descriptor, not by its number, which
// the system may reuse. Owned by a rank; any thread.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/unique_fd.h"

namespace zerorun {

class ProcessWatch {
 public:
  explicit ProcessWatch(int rank) : rank_(rank) {}

  /// Adds the process of the next rank, in the order of ranks. Throws Error.
  void add(pid_t pid);

  /// Ranks whose process has ended, whether or not its parent has noticed.
  std::vector<int> ended() const;
  pid_t process(int rank) const { return processes_[rank]; }

 private:
  int rank_;
  std::vector<pid_t> processes_;
  std::vector<UniqueFd> descriptors_;
};

}  // namespace zerorun
