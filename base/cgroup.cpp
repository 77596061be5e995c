#include "base/cgroup.h"

#include <fstream>

namespace zerorun {
namespace {

// A container may see only its own part of the cgroup tree, with its own cgroup at the mount point. In that
// case the folders along `path` do not exist, and the limits are in the mount point's folder. So the mount
// point is always included.
void add_folders_along(const std::string& mount, std::string path, std::vector<std::string>& folders) {
  folders.push_back(mount);
  while (!path.empty()) {
    if (path != "/") folders.push_back(mount + path);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::vector<std::string> cgroup_folders(const std::string& controller, const std::string& root) {
  const std::string mounts = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  std::vector<std::string> folders;
  for (std::string line; std::getline(groups, line);) {  // NUMBER:CONTROLLERS:PATH
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {  // version 2
      add_folders_along(mounts, path, folders);
      add_folders_along(mounts + "/unified", path, folders);
    } else if (("," + controllers + ",").find("," + controller + ",") != std::string::npos) {
      add_folders_along(mounts + "/" + controller, path, folders);
      if (controllers != controller) add_folders_along(mounts + "/" + controllers, path, folders);
    }
  }
  return folders;
}

}  // namespace zerorun
