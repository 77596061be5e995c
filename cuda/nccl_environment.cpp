#include "cuda/nccl_environment.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace zerorun {
namespace {

constexpr char kLaunchOrder[] = "NCCL_LAUNCH_ORDER_IMPLICIT";
constexpr char kSharedGpus[] = "NCCL_MULTI_RANK_GPU_ENABLE";
constexpr char kNvls[] = "NCCL_NVLS_ENABLE";

// Counts the files of GPUs, because asking the driver would initialize it, and the process may still fork.
int count_installed_gpus() {
  constexpr char kPrefix[] = "nvidia";
  int count = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = file.path().filename();
    const std::string number = name.starts_with(kPrefix) ? name.substr(sizeof kPrefix - 1) : "";
    if (!number.empty() && std::ranges::all_of(number, [](unsigned char c) { return std::isdigit(c); })) {
      ++count;
    }
  }
  return count;
}

[[maybe_unused]] const bool completed_when_loaded = (complete_nccl_environment(), true);

}  // namespace

void complete_nccl_environment() {
  setenv(kLaunchOrder, "1", 0);
  setenv(kSharedGpus, "1", 0);
  if (ranks_share_gpus(std::getenv("LOCAL_WORLD_SIZE"), std::getenv("CUDA_VISIBLE_DEVICES"),
                       count_installed_gpus())) {
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
  const char* set = std::getenv(kLaunchOrder);
  return set && std::strtoll(set, nullptr, 0) != 0;
}

}  // namespace zerorun
