// Finds the folders in which the system publishes the limits of this process's cgroup. Any thread.
#pragma once

#include <string>
#include <vector>

namespace zerorun {

/// The folders that hold the files of `controller` ("cpu", "memory") for this process's cgroup and its
/// ancestors, at the usual mount points of cgroup versions 1 and 2. Some may not exist. `root` replaces "/"
/// (for tests).
std::vector<std::string> cgroup_folders(const std::string& controller, const std::string& root = "");

}  // namespace zerorun
