// Where the limits on this process's cgroup are told. Any thread.
#pragma once

#include <string>
#include <vector>

namespace zerorun {

/// The folders with the files of `controller` ("cpu", "memory") for this process's cgroup and those around
/// it, of either version of cgroups at the places where they are usually mounted. Some may not exist. `root`
/// stands for "/".
std::vector<std::string> cgroup_folders(const std::string& controller, const std::string& root = "");

}  // namespace zerorun
