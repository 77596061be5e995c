#include "launcher/orphans.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

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

void Orphans::ask_to_end(const std::vector<pid_t>& others, const std::set<pid_t>& groups) {
  for (const pid_t orphan : find(others)) {
    if (groups.contains(::getpgid(orphan)) || !asked_.insert(orphan).second) continue;
    ::kill(orphan, SIGTERM);
    ::kill(orphan, SIGCONT);  // a stopped process handles SIGTERM only when it continues
  }
}

void Orphans::kill(const std::vector<pid_t>& others) const {
  for (const pid_t orphan : find(others)) ::kill(orphan, SIGKILL);
}

std::string describe_leftovers(size_t count) {
  const bool one = count == 1;
  return std::to_string(count) + (one ? " process that a rank has" : " processes that ranks have") +
         " left behind " + (one ? "is" : "are") + " ended with the job";
}

}  // namespace zerorun::launcher
