// The number of cores that this process may use. Each call asks the system anew; any thread.
#pragma once

#include <optional>
#include <string>

namespace zerorun {

/// The cores of the affinity mask, or those that the cgroup's CPU quota covers if they are fewer: whole
/// cores, at least 1.
int count_usable_cores();

/// The smallest CPU quota, in cores, of this process's cgroup and its ancestors, for both versions of
/// cgroups at their usual mount points. Nothing: no limit. `root` stands for "/".
std::optional<double> cpu_quota(const std::string& root = "");

}  // namespace zerorun
