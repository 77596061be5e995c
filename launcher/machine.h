// The machine's GPUs and name. Each call asks the system again; any thread may call.
#pragma once

#include <string>

namespace zerorun {

/// The number of NVIDIA GPUs, counted by their device files (/dev/nvidia0, /dev/nvidia1, ...).
int count_gpus(const std::string& device_folder = "/dev");
std::string this_hostname();

/// The value of an environment variable of this process; empty if it is not set.
std::string variable(const char* name);

}  // namespace zerorun
