#include "launcher/oom_kills.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/cgroup.h"
#include "base/unique_fd.h"

namespace zerorun::launcher {
namespace {

// The number on the line "NAME number".
std::optional<int64_t> counter(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string found;
  for (std::string value; file >> found >> value;) {
    if (found == name) return std::strtoll(value.c_str(), nullptr, 10);
  }
  return std::nullopt;
}

// The text from the end of `before` to the next comma or space. Absent if the line does not contain `before`.
std::optional<std::string> field(const std::string& line, const std::string& before) {
  const size_t start = line.find(before);
  if (start == std::string::npos) return std::nullopt;
  const size_t from = start + before.size();
  return line.substr(from, line.find_first_of(", ", from) - from);
}

int64_t kilobytes(const std::string& line, const std::string& before) {
  const auto text = field(line, before);
  return text ? std::strtoll(text->c_str(), nullptr, 10) << 10 : 0;
}

std::string limit_of(const std::string& line) {
  const std::string constraint = field(line, "oom-kill:constraint=").value_or("");
  if (constraint == "CONSTRAINT_MEMCG")
    return "the memory limit of cgroup " + field(line, ",oom_memcg=").value_or("?");
  if (constraint == "CONSTRAINT_CPUSET" || constraint == "CONSTRAINT_MEMORY_POLICY")
    return "the memory of the NUMA nodes that it is bound to";
  return "the machine's memory";
}

}  // namespace

OomCounts read_oom_counts(const std::string& root) {
  OomCounts counts;
  // The longest path is the process's own cgroup, so its counter is read first. In cgroup version 2, an
  // ancestor's counter also includes kills in other cgroups.
  std::vector<std::string> folders = cgroup_folders("memory", root);
  std::ranges::stable_sort(folders, std::ranges::greater(), &std::string::size);
  for (const std::string& folder : folders) {
    for (const char* file : {"/memory.events", "/memory.oom_control"}) {
      if (!counts.cgroup) counts.cgroup = counter(folder + file, "oom_kill");
    }
  }
  counts.machine = counter(root + "/proc/vmstat", "oom_kill");
  return counts;
}

std::vector<std::string> read_kernel_log() {
  std::vector<std::string> lines;
  const UniqueFd log(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!log.is_open()) return lines;
  std::array<char, 8192> record{};  // the kernel's longest record; each read returns one
  while (true) {
    const ssize_t size = ::read(log.get(), record.data(), record.size());
    if (size < 0 && (errno == EPIPE || errno == EINTR))
      continue;  // EPIPE: a record was overwritten meanwhile
    if (size <= 0) return lines;
    const std::string_view text(record.data(), size);  // "PRIORITY,NUMBER,TIME,FLAGS;MESSAGE\n DETAILS"
    const size_t start = text.find(';') + 1;           // npos + 1 is 0
    lines.emplace_back(text.substr(start, text.find('\n', start) - start));
  }
}

std::optional<OomKill> find_oom_kill(const std::vector<std::string>& kernel_log, pid_t pid) {
  const std::string number = std::to_string(pid);
  std::optional<OomKill> kill;
  for (const std::string& line : kernel_log) {
    if (line.find("oom-kill:") != std::string::npos && field(line, ",pid=") == number) {
      kill = OomKill{.limit = limit_of(line)};
    } else if (kill && line.find("Killed process " + number + " ") != std::string::npos) {
      for (const char* part : {"anon-rss:", "file-rss:", "shmem-rss:"})
        kill->resident_bytes += kilobytes(line, part);
    }
  }
  return kill;
}

}  // namespace zerorun::launcher
