// The limits on the memory of this process and of the processes that share them. Each call asks the system
// anew; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zerorun {

struct MemoryLimit {
  std::string name;   // for messages: a file, or "the machine's memory"
  std::string group;  // of those that the limit is on, as all of them spell it
  int64_t bytes;      // of memory and swap
};

/// The machine's memory, and the lower limits of this process's cgroup and its ancestors. `root` stands for
/// "/".
std::vector<MemoryLimit> memory_limits(const std::string& root = "");

}  // namespace zerorun
