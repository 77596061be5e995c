// What this machine has. Each call asks the system anew; any thread may call.
#pragma once

#include <string>

namespace zerorun {

/// NVIDIA GPUs, counted by their device files (/dev/nvidia0, /dev/nvidia1, ...).
int count_gpus(const std::string& device_folder = "/dev");
std::string this_hostname();

}  // namespace zerorun
