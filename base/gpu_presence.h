// The NVIDIA GPUs that the system knows of, whether they work or not. Reads files only and calls no driver,
// so it finds a GPU that has fallen off the bus too. Any thread.
#pragma once

#include <string>
#include <vector>

namespace zerorun {

struct PciGpu {
  std::string address;  // "0000:18:00.0"
  std::string driver;   // the kernel driver that is bound to it: "nvidia", "vfio-pci"; empty if there is none
  bool answers = true;  // false: it is in the system's list, but reads from it give only ones
};

/// The PCI devices of vendor NVIDIA that are GPUs, by address. `root` replaces "/" (for tests).
std::vector<PciGpu> read_pci_gpus(const std::string& root = "");

/// The number of the driver's device files (/dev/nvidia0, /dev/nvidia1, ...). A container has only the files
/// of the GPUs that it was given.
int count_gpu_files(const std::string& device_folder = "/dev");

/// Whether GPUs belong to this machine or container: there are device files of the driver, or the driver's
/// library is installed and there are GPUs on the PCI bus.
bool has_gpus(bool driver_installed, const std::string& root = "");

/// Whether this value of CUDA_VISIBLE_DEVICES (null: not set) hides all GPUs, which means that the user asks
/// for the CPU.
bool hides_all_gpus(const char* visible_devices);

}  // namespace zerorun
