#include "cuda/nccl_environment.h"

#include <cstdlib>

namespace zerorun {
namespace {

constexpr char kLaunchOrder[] = "NCCL_LAUNCH_ORDER_IMPLICIT";
constexpr char kSharedGpus[] = "NCCL_MULTI_RANK_GPU_ENABLE";

[[maybe_unused]] const bool completed_when_loaded = (complete_nccl_environment(), true);

}  // namespace

void complete_nccl_environment() {
  setenv(kLaunchOrder, "1", 0);
  setenv(kSharedGpus, "1", 0);
}

// Parses the number like NCCL, whose default is 0.
bool nccl_orders_launches() {
  const char* set = std::getenv(kLaunchOrder);
  return set && std::strtoll(set, nullptr, 0) != 0;
}

}  // namespace zerorun
