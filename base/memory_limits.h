// The memory limits that apply to this process. Each limit has an identifier, which is the same in all
// processes that share the limit. Each call queries the system again; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zerorun {

struct MemoryLimit {
  std::string name;   // for messages: a file, or "the machine's memory"
  std::string group;  // identifies the limit: the same text in all processes that share it
  int64_t bytes;      // memory and swap together
};

/// The machine's memory, and each limit of this process's cgroup and its ancestors that is lower than the
/// machine's memory. `root` replaces "/" (for tests).
std::vector<MemoryLimit> memory_limits(const std::string& root = "");

/// Bytes that this process's host and cgroups could still give, swap included: what the system calls
/// available, and what each limit leaves beside the memory that cannot be reclaimed.
int64_t available_memory(const std::string& root = "");

}  // namespace zerorun
