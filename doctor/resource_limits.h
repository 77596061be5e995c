// The limits that the system sets for this process and the processes that it starts, and whether they suffice
// for a job's ranks. judge_limits() is pure. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "doctor/finding.h"

namespace zerorun::doctor {

struct ResourceLimits {
  // most_open_files is a hard limit, the others are soft limits. Absent: unlimited, or not known.
  std::optional<int64_t> locked_bytes;
  std::optional<int64_t> open_files, most_open_files;
  std::optional<int64_t> processes;
  bool may_lock_more = false;   // CAP_IPC_LOCK: no limit of locked memory
  bool may_start_more = false;  // CAP_SYS_RESOURCE or CAP_SYS_ADMIN: no limit of processes
  // Limits of the cgroup and its ancestors; absent: unlimited.
  std::optional<int64_t> cgroup_processes;  // threads and processes that may still be started
  std::optional<double> cpu_quota;          // cores
  std::optional<int64_t> memory_bytes;      // the smallest of the machine's memory and the cgroups' limits
  std::string memory_limit;                 // the source of memory_bytes: a file, or "the machine's memory"
  int processors = 1;                       // processors in the affinity mask
};

/// The facts about a job that determine how many threads and files and how much locked memory it needs on one
/// host.
struct Demand {
  int local_ranks = 2;
  int world_size = 2;
  bool has_rdma = false;  // network cards that read memory themselves (InfiniBand, RoCE)
};

/// `root` replaces "/" (for tests).
ResourceLimits read_limits(const std::string& root = "");

Findings judge_limits(const ResourceLimits& limits, const Demand& demand);

}  // namespace zerorun::doctor
