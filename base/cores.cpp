#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>

#include "base/cgroup.h"

namespace zerorun {
namespace {

int count_cores_of_mask() {
  // The call fails with EINVAL if the set is smaller than the kernel's own set, so try larger ones.
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(capacity),
                                                         [](cpu_set_t* s) { CPU_FREE(s); });
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    if (sched_getaffinity(0, bytes, set.get()) == 0) return CPU_COUNT_S(bytes, set.get());
    if (errno != EINVAL) break;
  }
  return 1;
}

using Quota = std::optional<double>;

Quota smaller(Quota first, Quota second) {
  if (!first || !second) return first ? first : second;
  return std::min(*first, *second);
}

// Returns the quota in cores: `limit` / `period`, both in microseconds. The values "max" and -1 and
// unreadable values mean no limit.
Quota share(std::istream& limit, std::istream& period) {
  double used = 0;
  double whole = 0;
  if (!(limit >> used) || !(period >> whole) || used <= 0 || whole <= 0) return std::nullopt;
  return used / whole;
}

Quota quota_of(const std::string& folder) {
  std::ifstream both(folder + "/cpu.max");  // version 2
  std::ifstream limit(folder + "/cpu.cfs_quota_us");
  std::ifstream period(folder + "/cpu.cfs_period_us");
  return smaller(share(both, both), share(limit, period));
}

}  // namespace

int count_usable_cores() {
  const int cores = count_cores_of_mask();
  const Quota quota = cpu_quota();
  return quota && *quota < cores ? std::max(1, static_cast<int>(*quota)) : cores;
}

std::optional<double> cpu_quota(const std::string& root) {
  Quota least;
  for (const std::string& folder : cgroup_folders("cpu", root)) least = smaller(least, quota_of(folder));
  return least;
}

}  // namespace zerorun
