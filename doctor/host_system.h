// Versions, clock, shared memory, disks and settings of this host. judge_host_system() is pure. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "doctor/finding.h"

namespace zerorun::doctor {

struct HostSystem {
  std::string kernel;     // "Linux 6.1.0-18-amd64"
  std::string system;     // PRETTY_NAME of /etc/os-release
  std::string libc;       // "2.36"
  std::string processor;  // "AMD EPYC 7543"
  std::string nodes;      // the list of NUMA nodes that are online, "0-1"
  std::string time;       // UTC, "2025-01-31 12:00:00"
  bool clock_synchronized = true;
  std::string memfd_error;           // why memory files (memfd) do not work; empty if they do
  std::string io_uring_error;        // why io_uring does not work; empty if it does
  std::optional<int64_t> shm_bytes;  // size of /dev/shm
  std::vector<std::pair<std::string, int64_t>>
      free_bytes;  // by folder: the current folder, and the folder of temporary files
  std::vector<std::pair<std::string, std::string>> settings;  // environment variables that jobs read
};

/// `root` replaces "/" in the paths of files (for tests).
HostSystem read_host_system(const std::string& root = "");

/// `gpus`: the number of GPUs of this host.
Findings judge_host_system(const HostSystem& system, int gpus);

/// The versions of ZeroRun and of the libraries that it was built with.
Finding build_versions();

}  // namespace zerorun::doctor
