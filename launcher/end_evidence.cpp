#include "launcher/end_evidence.h"

#include <sys/statvfs.h>

#include <fstream>
#include <iterator>
#include <utility>

namespace zerorun::launcher {
namespace {

bool is_full(const std::string& folder) {
  struct statvfs disk {};
  return ::statvfs(folder.c_str(), &disk) == 0 && disk.f_blocks > 0 && disk.f_bavail == 0;
}

bool has_grown(const OomCounts& before, const OomCounts& after) {
  return after.cgroup > before.cgroup || after.machine > before.machine;
}

// The state letter in /proc/PID/stat, whose text is "PID (NAME) STATE ...". NAME may contain any character.
char state_of(pid_t pid, const std::string& root) {
  std::ifstream file(root + "/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t end_of_name = text.rfind(')');
  return end_of_name == std::string::npos || end_of_name + 2 >= text.size() ? '?' : text[end_of_name + 2];
}

}  // namespace

EndEvidence collect_evidence(pid_t pid, int wait_status, std::vector<std::string> last_lines,
                             const OomCounts& before, const std::vector<std::string>& folders) {
  EndEvidence evidence{.wait_status = wait_status, .last_lines = std::move(last_lines), .before = before};
  evidence.after = read_oom_counts();
  // If no counter has grown, an entry in the log with this PID is about an earlier process.
  if (has_grown(before, evidence.after)) evidence.oom_kill = find_oom_kill(read_kernel_log(), pid);
  for (const std::string& folder : folders) {
    if (is_full(folder)) evidence.full_disks.push_back(folder);
  }
  return evidence;
}

std::string describe_stop(pid_t pid, const std::string& root) {
  const std::string number = std::to_string(pid);
  switch (state_of(pid, root)) {
    case 'T':
      return "stopped by a signal (SIGSTOP, or Ctrl-Z in its terminal): `kill -CONT " + number +
             "` lets it go on";
    case 't':
      return "stopped by a debugger or tracer: let it go on there, or detach it (process " + number + ")";
    default:
      return {};
  }
}

}  // namespace zerorun::launcher
