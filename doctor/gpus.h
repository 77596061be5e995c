// NVIDIA's GPUs and driver, read from the driver's files in /proc and from its library NVML, which is loaded
// if it is installed. CUDA is not used. judge_gpus() is pure. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "doctor/finding.h"

namespace zerorun {

struct Gpu {
  std::string name = {};
  int64_t memory_bytes = 0;  // 0: not known
  std::string error = {};    // NVML's words if the GPU does not answer; then nothing else is known
};

struct Gpus {
  std::string kernel_driver;   // version of the kernel's module; empty if it is not loaded
  std::string library_driver;  // version that NVML reports; empty if NVML cannot be loaded or used
  std::string library_error;   // why NVML cannot be loaded or used
  int cuda_version = 0;        // the newest CUDA that the driver can run, 13000 for 13.0; 0: not known
  std::vector<Gpu> gpus;
};

/// The version in the text of /proc/driver/nvidia/version, "570.86.15"; empty if there is none. Pure.
std::string driver_version_in(const std::string& text);

/// `root` replaces "/" in the paths of files (for tests); NVML is used only if `root` is empty.
Gpus read_gpus(const std::string& root = "");

Findings judge_gpus(const Gpus& gpus);

}  // namespace zerorun
