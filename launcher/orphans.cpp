#include "launcher/orphans.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace zerorun::launcher {
namespace {

std::vector<pid_t> children() {
  const std::string pid = std::to_string(::getpid());
  std::ifstream file("/proc/self/task/" + pid + "/children");
  std::vector<pid_t> found;
  for (pid_t child = 0; file >> child;) found.push_back(child);
  return found;
}

}  // namespace

Orphans::Orphans() : before_(children()) {}

std::vector<pid_t> Orphans::find(const std::vector<pid_t>& others) const {
  std::vector<pid_t> found = children();
  std::erase_if(found, [&](pid_t child) {
    return std::ranges::count(before_, child) > 0 || std::ranges::count(others, child) > 0;
  });
  return found;
}

}  // namespace zerorun::launcher
