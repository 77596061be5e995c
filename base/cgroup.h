// Where the system publishes the limits of this process's cgroup. Any thread.
#pragma once

#include <string>
#include <vector>

namespace zerorun {

/// The folders with the files of `controller` ("cpu", "memory") for this process's cgroup and its
/// ancestors, for both versions of cgroups, at their usual mount points. Some may not exist. `root` stands
/// for "/".
std::vector<std::string> cgroup_folders(const std::string& controller, const std::string& root = "");

}  // namespace zerorun
