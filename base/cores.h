// How many cores this process may keep busy. Each call asks the system anew; any thread.
#pragma once

#include <optional>
#include <string>

namespace zerorun {

/// Those of the affinity mask, or as many as the cgroup's CPU quota pays for where these are fewer: whole
/// ones, and at least 1.
int count_usable_cores();

/// The smallest CPU quota, in cores, of this process's cgroup and those around it, of either version of
/// cgroups at the places where they are usually mounted. None: no limit. `root` stands for "/".
std::optional<double> cpu_quota(const std::string& root = "");

}  // namespace zerorun
