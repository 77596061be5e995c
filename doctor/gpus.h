// NVIDIA GPUs and their driver, as the driver reports them: its files in /proc, and its library NVML, which
// is loaded if it is there. No CUDA. Judging is pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "doctor/finding.h"

namespace zerorun {

struct Gpu {
  std::string name;
  int64_t memory_bytes = 0;  // 0: not known
};

struct Gpus {
  std::string kernel_driver;   // version of the kernel's module; empty if it is not loaded
  std::string library_driver;  // version that NVML tells; empty if it cannot be loaded or used
  std::string library_error;   // why
  int cuda_version = 0;        // the newest that the driver can run, 13000 for 13.0; 0: not known
  std::vector<Gpu> gpus;
};

/// The version in the text of /proc/driver/nvidia/version, "570.86.15"; empty if there is none. Pure.
std::string driver_version_in(const std::string& text);

/// `root` replaces "/" for what is read from files (for tests); NVML is asked only without it.
Gpus read_gpus(const std::string& root = "");

Findings judge_gpus(const Gpus& gpus);

}  // namespace zerorun
