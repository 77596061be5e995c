#include "base/memory_limits.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include "base/cgroup.h"

namespace zerorun {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value of a "name value" line of a file; 0 if there is none.
int64_t value_in(const std::string& path, const std::string& wanted) {
  std::ifstream lines(path);
  std::string name;
  for (int64_t value = 0; lines >> name >> value;) {
    if (name == wanted) return value;
  }
  return 0;
}

// Bytes of memory and swap; `memory` is empty if the system does not report it.
struct Machine {
  std::optional<int64_t> memory;
  int64_t swap = 0;
};

Machine machine_of(const std::string& root) {
  Machine machine;
  std::ifstream lines(root + "/proc/meminfo");
  std::string name;
  std::string rest;
  for (int64_t kib = 0; lines >> name >> kib && std::getline(lines, rest);) {
    if (name == "MemTotal:") machine.memory = kib << 10;
    if (name == "SwapTotal:") machine.swap = kib << 10;
  }
  return machine;
}

}  // namespace

int64_t available_memory(const std::string& root) {
  std::ifstream lines(root + "/proc/meminfo");
  std::string name;
  std::string rest;
  int64_t available = 0;
  int64_t swap = 0;
  for (int64_t kib = 0; lines >> name >> kib && std::getline(lines, rest);) {
    if (name == "MemAvailable:") available = kib << 10;
    if (name == "SwapFree:") swap = kib << 10;
  }
  int64_t least = available + swap;
  for (const std::string& folder : cgroup_folders("memory", root)) {
    int64_t limit = 0, used = 0;
    const bool is_first_version = !(std::ifstream(folder + "/memory.max") >> limit);
    if (is_first_version && !(std::ifstream(folder + "/memory.limit_in_bytes") >> limit)) continue;
    if (!(std::ifstream(folder + (is_first_version ? "/memory.usage_in_bytes" : "/memory.current")) >> used))
      continue;
    const int64_t reclaimable =
        value_in(folder + "/memory.stat", is_first_version ? "total_inactive_file" : "inactive_file");
    least = std::min(least, std::max<int64_t>(limit - (used - reclaimable), 0) + swap);
  }
  return least;
}

std::vector<MemoryLimit> memory_limits(const std::string& root) {
  const Machine machine = machine_of(root);
  const std::string boot = first_line(root + "/proc/sys/kernel/random/boot_id");
  std::vector<MemoryLimit> limits;
  int64_t most = std::numeric_limits<int64_t>::max() - machine.swap;
  if (machine.memory) {
    most = *machine.memory;
    limits.push_back({.name = "the machine's memory", .group = boot, .bytes = most + machine.swap});
  }
  std::vector<std::string> seen;
  for (const std::string& folder : cgroup_folders("memory", root)) {
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"}) {
      const std::string path = folder + file;
      struct stat about {};
      int64_t bytes = 0;
      // "max" means no limit and does not parse as a number.
      if (!(std::ifstream(path) >> bytes) || bytes >= most || ::stat(folder.c_str(), &about) != 0) continue;
      std::string group = boot + "/" + std::to_string(about.st_dev) + "/" + std::to_string(about.st_ino);
      if (std::ranges::find(seen, group) != seen.end()) continue;
      limits.push_back({.name = path, .group = group, .bytes = bytes + machine.swap});
      seen.push_back(std::move(group));
    }
  }
  return limits;
}

}  // namespace zerorun
