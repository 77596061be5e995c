// The limits that the system sets to this process and those it starts, and whether they suffice for a job's
// ranks. Reading and judging are apart: judging is pure. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "doctor/finding.h"

namespace zerorun {

struct ResourceLimits {
  // Soft and hard limits; absent: unlimited, or not told.
  std::optional<int64_t> locked_bytes;
  std::optional<int64_t> open_files, most_open_files;
  std::optional<int64_t> processes;
  bool may_lock_more = false;   // CAP_IPC_LOCK: no limit of locked memory
  bool may_start_more = false;  // root: no limit of processes
  // Of the cgroup and those around it; absent: unlimited.
  std::optional<int64_t> cgroup_processes;  // that may still be started
  std::optional<double> cpu_quota;          // cores
  std::optional<int64_t> memory_bytes;      // the least of the machine's memory and the cgroups' limits
  std::string memory_limit;                 // what sets it: a file, or "the machine's memory"
  int processors = 1;                       // of the affinity mask
};

/// What a job needs of one host.
struct Demand {
  int local_ranks = 2;
  int world_size = 2;
  bool has_rdma = false;  // network cards that read memory themselves (InfiniBand, RoCE)
};

/// `root` replaces "/" (for tests).
ResourceLimits read_limits(const std::string& root = "");

Findings judge_limits(const ResourceLimits& limits, const Demand& demand);

}  // namespace zerorun
