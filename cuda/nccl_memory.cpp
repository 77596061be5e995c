#include "cuda/nccl_memory.h"

#include <ATen/ops/from_blob.h>

#include <utility>

#include "base/error.h"
#include "cuda/cuda_check.h"

namespace zerorun {
namespace {

// What it has been used for is done before it goes. Called by destructors, in any thread; says nothing, since
// at a program's end CUDA may be gone.
void free_memory(c10::DeviceIndex device, void* memory, NcclComms& comms) {
  int outer = device;
  cudaGetDevice(&outer);
  if (outer != device) cudaSetDevice(device);
  cudaDeviceSynchronize();
  comms.forget_memory(memory);
  ncclMemFree(memory);
  if (outer != device) cudaSetDevice(outer);
  cudaGetLastError();
}

void fill_with_zeros(void* memory, size_t bytes) {
  cudaStream_t stream = nullptr;
  ZR_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaError_t status = cudaMemsetAsync(memory, 0, bytes, stream);
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  check_cuda(status, "cudaMemsetAsync");
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
  if (const ncclResult_t result = ncclMemAlloc(&memory_, bytes); result != ncclSuccess) {
    cudaGetLastError();
    size_t free = 0;
    size_t total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error("the GPU has no " + std::to_string(bytes) + " bytes of memory left (" + std::to_string(free) +
                " of its " + std::to_string(total) + " are free): " + ncclGetErrorString(result));
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
