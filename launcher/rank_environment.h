// The environment variables of a rank, with torchrun's and DeepSpeed's names. Pure.
#pragma once

#include <string>
#include <vector>

namespace zerorun {

/// Values that all ranks of a job on this machine share.
struct JobEnvironment {
  int world_size = 1;
  std::string master_addr;
  int master_port = 0;
  int listening_fd = -1;  // ZERORUN_LISTEN_FD, only for rank 0: the socket that listens on the port
  std::string token;      // ZERORUN_JOB: distinguishes this job from others
  double timeout_seconds = 0;
  std::string device;           // ZERORUN_DEVICE; empty: keeps the user's variable
  std::string comm;             // ZERORUN_COMM; empty: keeps the user's variable
  int threads_per_rank = 1;     // OMP_NUM_THREADS, unless the user has set it
  std::string visible_devices;  // CUDA_VISIBLE_DEVICES; empty: keeps the user's variable
  bool terminal = false;        // ZERORUN_TERMINAL: the launcher's stdout is a terminal
};

/// The environment `inherited` ("NAME=value" each) with the variables of rank `rank` set.
std::vector<std::string> rank_environment(const std::vector<std::string>& inherited,
                                          const JobEnvironment& job, int rank);

/// CUDA_VISIBLE_DEVICES for `ranks` ranks: `slots`; else `users_list`, cut to one device per rank; else the
/// first GPUs. Empty if there are no slots and no GPUs.
std::string choose_visible_devices(const std::vector<int>& slots, const std::string& users_list, int gpus,
                                   int ranks);

/// Entries of a list such as CUDA_VISIBLE_DEVICES.
std::vector<std::string> split_devices(const std::string& list);

}  // namespace zerorun
