// The number of cores that this process may use. Each call queries the system again; any thread.
#pragma once

#include <optional>
#include <string>

namespace zerorun {

/// The number of cores in the affinity mask or, if smaller, the cgroup's CPU quota rounded down to whole
/// cores; at least 1.
int count_usable_cores();

/// The smallest CPU quota, in cores, of this process's cgroup and its ancestors, for both versions of
/// cgroups at their usual mount points. Empty if there is no limit. `root` replaces "/" (for tests).
std::optional<double> cpu_quota(const std::string& root = "");

}  // namespace zerorun
