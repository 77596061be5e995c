// NVIDIA's GPUs and driver: what the PCI bus, the driver's files in /proc, the kernel's log and the driver's
// library NVML say of them. CUDA is not used. judge_gpus() is pure. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/gpu_presence.h"
#include "doctor/finding.h"
#include "doctor/xid.h"

namespace zerorun::doctor {

/// Which processes may use a GPU; NVML's values.
enum class ComputeMode { shared = 0, one_thread = 1, prohibited = 2, one_process = 3 };

struct Gpu {
  std::string name = {};
  int64_t memory_bytes = 0;  // 0: not known
  std::string error =
      {};  // NVML's words if the GPU does not answer; then only the number of the GPU is known
  std::string address = {};  // on the PCI bus, "0000:18:00.0"; empty: not known
  // Absent: the GPU does not have it, or the driver does not say.
  std::optional<bool> ecc_on = {};
  std::optional<int64_t> uncorrected_errors = {};  // of ECC, since the driver was loaded
  bool remap_pending = false;                      // broken memory rows are replaced at the next reset
  bool remap_failed = false;                       // there is no spare memory row left
  std::optional<bool> mig_on = {};
  std::optional<ComputeMode> compute_mode = {};
  int nvlinks = 0;         // NVLinks that are up
  int broken_nvlinks = 0;  // NVLinks that are down
};

struct Gpus {
  std::string kernel_driver;        // version of the kernel's module; empty if it is not loaded
  std::string library_driver;       // version that NVML reports; empty if NVML cannot be loaded or used
  std::string library_error;        // why NVML cannot be loaded or used
  int cuda_version = 0;             // the newest CUDA that the driver can run, 13000 for 13.0; 0: not known
  std::vector<Gpu> gpus;            // as NVML numbers them; without NVML those in /proc
  std::vector<std::string> listed;  // PCI addresses of the GPUs that the kernel's module lists in /proc
  std::vector<PciGpu> pci;
  std::optional<std::vector<Xid>> xids;  // absent: the kernel's log may not be read
};

/// The version in the text of /proc/driver/nvidia/version, "570.86.15"; empty if there is none. Pure.
std::string driver_version_in(const std::string& text);

/// `root` replaces "/" in the paths of files (for tests).
Gpus read_gpus(const std::string& root = "");

/// `local_ranks`: the ranks of a job on this host.
Findings judge_gpus(const Gpus& gpus, int local_ranks);

}  // namespace zerorun::doctor
