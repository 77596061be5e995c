// How much memory this process may have at most, together with others. Each call asks the system anew; any
// thread.
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

/// That of the machine, and those of this process's cgroup and the ones around it that are lower. `root`
/// stands for "/".
std::vector<MemoryLimit> memory_limits(const std::string& root = "");

}  // namespace zerorun
