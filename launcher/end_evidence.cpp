#include "launcher/end_evidence.h"

#include <sys/statvfs.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "launcher/process_state.h"

namespace zerorun::launcher {
namespace {

bool has_full_disk(const std::string& folder) {
  struct statvfs disk {};
  return ::statvfs(folder.c_str(), &disk) == 0 && disk.f_blocks > 0 && disk.f_bavail == 0;
}

bool has_grown(const OomCounts& before, const OomCounts& after) {
  return after.cgroup > before.cgroup || after.machine > before.machine;
}

char state_of(pid_t pid, const std::string& root) {
  std::ifstream file(root + "/proc/" + std::to_string(pid) + "/stat");
  return state_in({std::istreambuf_iterator<char>(file), {}});
}

// What the threads of full_disks() have found so far.
struct DiskExamination {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> is_full;  // by folder
  size_t done = 0;
};

}  // namespace

std::vector<std::string> full_disks(const std::vector<std::string>& folders,
                                    bool (*is_full)(const std::string& folder)) {
  constexpr std::chrono::milliseconds kPatience(500);
  const auto examination = std::make_shared<DiskExamination>();
  examination->is_full.resize(folders.size());
  size_t started = 0;
  for (size_t index = 0; index < folders.size(); ++index) {
    const auto examine = [examination, index, folder = folders[index], is_full] {
      const bool full = is_full(folder);
      const std::lock_guard lock(examination->mutex);
      examination->is_full[index] = full;
      ++examination->done;
      examination->changed.notify_one();
    };
    try {
      std::thread(examine).detach();
      ++started;
    } catch (const std::system_error&) {  // the user may have no more threads
    }
  }
  std::unique_lock lock(examination->mutex);
  examination->changed.wait_for(lock, kPatience, [&] { return examination->done == started; });
  std::vector<std::string> full;
  for (size_t index = 0; index < folders.size(); ++index) {
    if (examination->is_full[index]) full.push_back(folders[index]);
  }
  return full;
}

EndEvidence collect_evidence(pid_t pid, int wait_status, std::vector<std::string> last_lines,
                             const OomCounts& before, const std::vector<std::string>& folders) {
  EndEvidence evidence{.wait_status = wait_status, .last_lines = std::move(last_lines), .before = before};
  evidence.after = read_oom_counts();
  // If no counter has grown, an entry in the log with this PID is about an earlier process.
  if (has_grown(before, evidence.after)) evidence.oom_kill = find_oom_kill(read_kernel_log(), pid);
  evidence.full_disks = full_disks(folders, has_full_disk);
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
