// Asks the NVIDIA driver, before a rank starts, whether every rank of this host will find a GPU. A program
// that has called the driver must not start ranks by fork, and a broken GPU can block its callers for ever.
// So a child process asks: the hidden command `zerorun --ask_gpus`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/hosts/job_placement.h"
#include "launcher/hosts/node_order.h"

namespace zerorun::launcher {

/// What a process with some CUDA_VISIBLE_DEVICES is told about its GPUs.
struct GpuAnswer {
  bool driver = false;    // the driver's library is installed
  bool expected = false;  // this machine has GPUs, and CUDA_VISIBLE_DEVICES does not hide all
  int found = 0;          // GPUs that the driver shows to the process
  int usable = 0;         // `found`, or 0 if the process cannot use them
  std::string reason;     // why `usable` is 0
  std::vector<std::string>
      silent;  // GPUs that do not answer: "GPU 3"; only looked for if `usable` is too small

  bool operator==(const GpuAnswer&) const = default;
};

/// What the ranks of a host need.
struct GpuDemand {
  int ranks = 1;
  bool may_share = false;    // the user has set NCCL_MULTI_RANK_GPU_ENABLE
  bool slots_named = false;  // --include or --exclude chose the GPUs
  std::string visible =
      {};  // the user's CUDA_VISIBLE_DEVICES; empty if it is not set or --include replaces it
};

/// Why the ranks must not start, with the remedy; empty if they may: with a GPU for each rank, or without any
/// GPU, on the CPU. Pure.
std::string refusal(const GpuAnswer& answer, const GpuDemand& demand);

bool is_gpu_question(int argc, const char* const* argv);
/// Runs `zerorun --ask_gpus RANKS`: prints a GpuAnswer. Returns the exit code.
int run_gpu_question(int argc, const char* const* argv);

/// Throws UserError if the ranks of `order` on this host must not start (refusal()). Does nothing if they are
/// told to train on the CPU. Returns the number of GPUs that they can use. `inherited`: the environment that
/// the ranks inherit. `meanwhile` is called several times a second.
int check_gpus(const NodeOrder& order, const ThisMachine& machine, const std::vector<std::string>& inherited,
               const std::function<void()>& meanwhile = {});

}  // namespace zerorun::launcher
