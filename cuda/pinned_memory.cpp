#include "cuda/pinned_memory.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "cuda/cuda_memory.h"
#include "device/zeroed_memory.h"

namespace zerorun {
namespace {

// Smaller memory is from cudaHostAlloc(), which packs it.
constexpr size_t kLarge = size_t{2} << 20;
// More threads do not provide pages faster: the memory's bandwidth is the limit.
constexpr int64_t kMostThreads = 8;
constexpr int64_t kBytesOfAThread = int64_t{32} << 20;

// Returns how many threads shall provide the pages of new memory.
int threads_for(size_t bytes) {
  return static_cast<int>(std::min({static_cast<int64_t>(at::get_num_threads()), kMostThreads,
                                    static_cast<int64_t>(bytes) / kBytesOfAThread + 1}));
}

at::Tensor small_memory(size_t bytes, int64_t numel, at::ScalarType dtype, c10::DeviceIndex device) {
  void* memory = nullptr;
  const cudaError_t status = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
  if (status != cudaSuccess) {
    cudaGetLastError();
    throw Error("the host has no " + std::to_string(bytes) +
                " bytes of page-locked memory left: " + cudaGetErrorString(status) +
                "; it keeps there what is offloaded and checkpoints on their way");
  }
  std::memset(memory, 0, bytes);
  return at::from_blob(
      memory, {numel}, [device](void* freed) { free_when_idle(device, [freed] { cudaFreeHost(freed); }); },
      at::TensorOptions().dtype(dtype));
}

}  // namespace

std::shared_ptr<void> page_lock(void* memory, size_t bytes, c10::DeviceIndex device) {
  const cudaError_t status = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
  if (status != cudaSuccess) {
    cudaGetLastError();
    throw Error("the host cannot page-lock " + std::to_string(bytes) +
                " bytes of memory: " + cudaGetErrorString(status) +
                "; it keeps there what is offloaded and checkpoints on their way");
  }
  return {memory,
          [device](void* locked) { free_when_idle(device, [locked] { cudaHostUnregister(locked); }); }};
}

// cudaHostAlloc() takes pages of 4 KiB one by one, in the calling thread, and their content is undefined. So
// large memory consists of pages that the system has filled with zeros, provided by several threads in pages
// of 2 MiB if possible, and CUDA only locks them.
at::Tensor pinned_memory(int64_t numel, at::ScalarType dtype, c10::DeviceIndex device) {
  const size_t bytes = std::max<size_t>(static_cast<size_t>(numel) * c10::elementSize(dtype), 1);
  if (bytes < kLarge) return small_memory(bytes, numel, dtype, device);
  at::Tensor memory = zeroed_memory(numel, dtype);
  populate(memory.mutable_data_ptr(), bytes, threads_for(bytes));
  // A forked child (a DataLoader's worker) would get a copy, or leave the parent with one that the GPU does
  // not see.
  ::madvise(memory.mutable_data_ptr(), bytes, MADV_DONTFORK);
  std::shared_ptr<void> lock = page_lock(memory.mutable_data_ptr(), bytes, device);
  void* address = memory.mutable_data_ptr();
  return at::from_blob(
      address, {numel},
      [memory = std::move(memory), lock = std::move(lock)](void*) mutable {
        lock.reset();  // before the memory is freed
        memory.reset();
      },
      at::TensorOptions().dtype(dtype));
}

}  // namespace zerorun
