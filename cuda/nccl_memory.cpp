#include "cuda/nccl_memory.h"

#include <ATen/ops/from_blob.h>

#include <utility>

#include "cuda/cached_memory.h"
#include "cuda/cuda_memory.h"

namespace zerorun {
namespace {

// Much of a full GPU's memory may be LibTorch's cache, which LibTorch frees for its own allocations only.
ncclResult_t allocate(void** memory, size_t bytes) {
  if (ncclMemAlloc(memory, bytes) == ncclSuccess) return ncclSuccess;
  free_cached_memory();
  return ncclMemAlloc(memory, bytes);
}

void free_memory(c10::DeviceIndex device, void* memory, NcclComms& comms) {
  free_when_idle(device, [&] {
    comms.forget_memory(memory);
    ncclMemFree(memory);
  });
}

}  // namespace

bool nccl_has_memory() {
  void* memory = nullptr;
  const bool has = ncclMemAlloc(&memory, kSmallestNcclMemory) == ncclSuccess;
  if (has) ncclMemFree(memory);
  cudaGetLastError();
  return has;
}

NcclMemory::NcclMemory(c10::Device device, size_t bytes, std::shared_ptr<NcclComms> comms)
    : device_(device), comms_(std::move(comms)) {
  if (const ncclResult_t result = allocate(&memory_, bytes); result != ncclSuccess) {
    fail_allocation("GPU " + std::to_string(device.index()), bytes, ncclGetErrorString(result));
  }
  try {
    fill_with_zeros(memory_, bytes);
  } catch (...) {
    ncclMemFree(memory_);
    throw;
  }
}

NcclMemory::~NcclMemory() {
  if (memory_) free_memory(device_.index(), memory_, *comms_);
}

at::Tensor NcclMemory::as_tensor(int64_t numel, at::ScalarType dtype) && {
  const c10::DeviceIndex device = device_.index();
  auto give_back = [device, comms = comms_](void* memory) { free_memory(device, memory, *comms); };
  at::Tensor tensor = at::for_blob(memory_, {numel})
                          .deleter(std::move(give_back))
                          .options(at::TensorOptions().dtype(dtype).device(device_))
                          .target_device(device_)
                          .make_tensor();
  memory_ = nullptr;
  return tensor;
}

}  // namespace zerorun
