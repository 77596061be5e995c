#include "doctor/resource_limits.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string_view>

#include "base/cgroup.h"
#include "base/cores.h"
#include "base/memory_limits.h"
#include "base/processor_list.h"
#include "doctor/system_file.h"

namespace zerorun::doctor {
namespace {

constexpr int kIpcLock = 14;  // numbers of capabilities in linux/capability.h
constexpr int kAdmin = 21;
constexpr int kResource = 24;

std::optional<int64_t> number_in(const std::string& text) {
  const bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  return number ? std::optional(std::strtoll(text.c_str(), nullptr, 10)) : std::nullopt;
}

// The soft or hard limit on the line of /proc/self/limits that begins with `name`.
std::optional<int64_t> limit_in(const std::string& table, const std::string& name, bool hard) {
  const size_t start = table.find(name);
  if (start == std::string::npos) return std::nullopt;
  std::array<char, 32> soft_text{};
  std::array<char, 32> hard_text{};
  if (std::sscanf(table.c_str() + start + name.size(), "%31s %31s", soft_text.data(), hard_text.data()) != 2)
    return std::nullopt;
  return number_in(hard ? hard_text.data() : soft_text.data());
}

// The value of "NAME:\tvalue" in /proc/self/status.
std::string status_value(const std::string& status, const std::string& name) {
  const size_t start = status.find("\n" + name + ":");
  if (start == std::string::npos) return {};
  const size_t from = status.find_first_not_of(" \t", start + name.size() + 2);
  return from == std::string::npos ? "" : status.substr(from, status.find('\n', from) - from);
}

std::optional<int64_t> free_in_cgroups(const std::string& root) {
  std::optional<int64_t> least;
  for (const std::string& folder : cgroup_folders("pids", root)) {
    int64_t most = 0;
    int64_t now = 0;
    if (!(std::ifstream(folder + "/pids.max") >> most)) continue;  // "max" is no number
    std::ifstream(folder + "/pids.current") >> now;
    least = std::min(least.value_or(most - now), most - now);
  }
  return least;
}

std::string count_text(std::optional<int64_t> count) {
  return count ? std::to_string(*count) : "unlimited";
}

// A generous estimate: 2 threads per processor for computation, and 32 per rank for communication and files.
int64_t threads_of_ranks(const ResourceLimits& limits, const Demand& demand) {
  return int64_t{demand.local_ranks} * 32 + 2 * limits.processors;
}

// A generous estimate of the open files that a rank needs (one connection to each other rank), which is also
// enough for the launcher (three pipes for each rank).
int64_t files_of_rank(const Demand& demand) {
  return 128 + 4 * int64_t{demand.world_size};
}

Finding judge_locked_memory(const ResourceLimits& limits, const Demand& demand) {
  constexpr int64_t kSmall = int64_t{1} << 30;
  const std::string subject = "locked memory";
  if (!limits.locked_bytes || limits.may_lock_more) return {Verdict::ok, subject, "unlimited"};
  const std::string text = bytes_text(static_cast<double>(*limits.locked_bytes)) + " may be locked";
  if (!demand.has_rdma || *limits.locked_bytes >= kSmall) {
    return {Verdict::ok, subject,
            text + ", which limits neither io_uring (since Linux 5.12) nor page-locked memory of GPUs"};
  }
  return {Verdict::problem, subject, text + ", and NCCL locks the memory that the RDMA network cards read",
          "ulimit -l unlimited (memlock in /etc/security/limits.conf; docker run --ulimit memlock=-1)"};
}

Finding judge_open_files(const ResourceLimits& limits, const Demand& demand) {
  const int64_t needed = files_of_rank(demand);
  const std::string text = count_text(limits.open_files) + " in a process (up to " +
                           count_text(limits.most_open_files) + " with state in files)";
  const auto is_enough = [&](std::optional<int64_t> limit) { return !limit || *limit >= needed; };
  const std::string remedy =
      "ulimit -n 65536 (nofile in /etc/security/limits.conf; docker run --ulimit nofile=65536)";
  if (!is_enough(limits.most_open_files) || !is_enough(limits.open_files)) {
    return {Verdict::problem, "open files",
            text + "; " + std::to_string(demand.world_size) + " ranks need " + std::to_string(needed),
            remedy};
  }
  if (limits.most_open_files && *limits.most_open_files < 4096)
    return {Verdict::note, "open files", text + "; state in files needs 4 for each bucket", remedy};
  return {Verdict::ok, "open files", text};
}

Finding judge_processes(const ResourceLimits& limits, const Demand& demand) {
  const int64_t needed = threads_of_ranks(limits, demand);
  const std::string needs =
      "; " + std::to_string(demand.local_ranks) + " ranks need about " + std::to_string(needed);
  if (limits.cgroup_processes && *limits.cgroup_processes < needed) {
    return {
        Verdict::problem, "processes",
        "the cgroup allows " + std::to_string(*limits.cgroup_processes) + " more, threads counted" + needs,
        "raise its pids.max (docker run --pids-limit -1, TasksMax of a systemd unit)"};
  }
  const bool limited = limits.processes && !limits.may_start_more;
  if (limited && *limits.processes < needed) {
    return {Verdict::problem, "processes",
            "this user may have " + std::to_string(*limits.processes) + ", threads counted" + needs,
            "ulimit -u unlimited (nproc in /etc/security/limits.conf)"};
  }
  return {Verdict::ok, "processes",
          (limited ? std::to_string(*limits.processes) + " of this user" : "unlimited for this user") + ", " +
              (limits.cgroup_processes ? std::to_string(*limits.cgroup_processes) + " more" : "unlimited") +
              " in the cgroup"};
}

Finding judge_memory(const ResourceLimits& limits) {
  if (!limits.memory_bytes) return {Verdict::note, "memory", "the system does not report how much there is"};
  const std::string text =
      bytes_text(static_cast<double>(*limits.memory_bytes)) + " (" + limits.memory_limit + ")";
  if (*limits.memory_bytes >= int64_t{1} << 30) return {Verdict::ok, "memory", text};
  return {Verdict::problem, "memory", text + ": each rank needs some hundred MiB before it has a model",
          "raise the cgroup's limit (docker run --memory), or use a larger machine"};
}

Finding judge_cores(const ResourceLimits& limits, const Demand& demand) {
  const double cores = std::min<double>(limits.processors, limits.cpu_quota.value_or(limits.processors));
  std::array<char, 64> quota{};
  if (limits.cpu_quota)
    std::snprintf(quota.data(), quota.size(), ", CPU quota of the cgroup %.4g", *limits.cpu_quota);
  const std::string text = std::to_string(limits.processors) + " may be used" + quota.data();
  if (cores >= demand.local_ranks) return {Verdict::ok, "processors", text};
  return {Verdict::note, "processors", text + "; " + std::to_string(demand.local_ranks) + " ranks share them",
          "fewer ranks on the CPU train as fast"};
}

}  // namespace

ResourceLimits read_limits(const std::string& root) {
  const std::string table = content_of(root + "/proc/self/limits");
  const std::string status = content_of(root + "/proc/self/status");
  const uint64_t capabilities = std::strtoull(status_value(status, "CapEff").c_str(), nullptr, 16);
  ResourceLimits limits;
  limits.locked_bytes = limit_in(table, "Max locked memory", false);
  limits.open_files = limit_in(table, "Max open files", false);
  limits.most_open_files = limit_in(table, "Max open files", true);
  limits.processes = limit_in(table, "Max processes", false);
  limits.may_lock_more = (capabilities >> kIpcLock & 1) != 0;
  limits.may_start_more = (capabilities >> kResource & 1) != 0 || (capabilities >> kAdmin & 1) != 0;
  limits.cgroup_processes = free_in_cgroups(root);
  limits.cpu_quota = cpu_quota(root);
  for (const MemoryLimit& limit : memory_limits(root)) {
    if (limits.memory_bytes && limit.bytes >= *limits.memory_bytes) continue;
    limits.memory_bytes = limit.bytes;
    limits.memory_limit = limit.name;
  }
  const std::string mask = status_value(status, "Cpus_allowed_list");
  if (!mask.empty())
    limits.processors = static_cast<int>(parse_processor_list(mask, "/proc/self/status").size());
  return limits;
}

Findings judge_limits(const ResourceLimits& limits, const Demand& demand) {
  return {judge_cores(limits, demand), judge_memory(limits), judge_locked_memory(limits, demand),
          judge_open_files(limits, demand), judge_processes(limits, demand)};
}

}  // namespace zerorun::doctor
