#include "cuda/nccl_environment.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/gpu_presence.h"
#include "base/nccl_variables.h"

namespace zerorun {
namespace {

constexpr char kNvls[] = "NCCL_NVLS_ENABLE";

[[maybe_unused]] const bool completed_when_loaded = (complete_nccl_environment(), true);

}  // namespace

void complete_nccl_environment() {
  for (const char* name : kNcclVariables) setenv(name, "1", 0);
  // The driver is not asked for the number of GPUs: that would initialize it, and the process may still fork.
  if (ranks_share_gpus(std::getenv("LOCAL_WORLD_SIZE"), std::getenv("CUDA_VISIBLE_DEVICES"),
                       count_gpu_files())) {
    setenv(kNvls, "0", 0);
  }
}

bool ranks_share_gpus(const char* local_world_size, const char* visible, int installed) {
  const std::string list = visible ? visible : "";
  const int64_t gpus = list.empty() ? installed : 1 + std::ranges::count(list, ',');
  return local_world_size && gpus > 0 && std::strtoll(local_world_size, nullptr, 10) > gpus;
}

// Parses the number like NCCL, whose default is 0.
bool nccl_orders_launches() {
  const char* set = std::getenv(kNcclLaunchOrder);
  return set && std::strtoll(set, nullptr, 0) != 0;
}

}  // namespace zerorun
