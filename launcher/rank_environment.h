// The environment variables of a rank: torchrun's and DeepSpeed's names. Pure.
#pragma once

#include <string>
#include <vector>

namespace zerorun {

/// What all ranks of a job on this machine share.
struct JobEnvironment {
  int world_size = 1;
  std::string master_addr;
  int master_port = 0;
  int listening_fd = -1;  // ZERORUN_LISTEN_FD, for rank 0: where it finds the socket on that port
  std::string token;      // ZERORUN_JOB: tells this job from others
  double timeout_seconds = 0;
  std::string device;           // ZERORUN_DEVICE; empty leaves the user's own
  std::string comm;             // ZERORUN_COMM, likewise
  int threads_per_rank = 1;     // OMP_NUM_THREADS, unless the user has set it
  std::string visible_devices;  // CUDA_VISIBLE_DEVICES; empty leaves the user's own
  bool terminal = false;        // the launcher's stdout is a terminal
};

/// `inherited` ("NAME=value" each) with the variables of rank `rank` set.
std::vector<std::string> rank_environment(const std::vector<std::string>& inherited,
                                          const JobEnvironment& job, int rank);

/// The device list for `ranks` ranks: the slots given; else the user's own list, cut to one device per rank;
/// else the first GPUs. Empty without any of these.
std::string choose_visible_devices(const std::vector<int>& slots, const std::string& users_list, int gpus,
                                   int ranks);

/// Entries of a list such as CUDA_VISIBLE_DEVICES.
std::vector<std::string> split_devices(const std::string& list);

}  // namespace zerorun
