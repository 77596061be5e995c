#include "cuda/cuda_memory.h"

#include "base/error.h"
#include "cuda/cuda_check.h"

namespace zerorun {

// Uses a stream of its own, so that it never waits for earlier work that in turn waits for another rank.
void fill_with_zeros(void* memory, size_t bytes) {
  cudaStream_t stream = nullptr;
  ZR_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaError_t status = cudaMemsetAsync(memory, 0, bytes, stream);
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  check_cuda(status, "cudaMemsetAsync");
}

void fail_allocation(const std::string& whose, size_t bytes, const char* reason) {
  cudaGetLastError();
  size_t free = 0;
  size_t total = 0;
  cudaMemGetInfo(&free, &total);
  throw Error(whose + " has no " + std::to_string(bytes) + " bytes of memory left (" + std::to_string(free) +
              " of the GPU's " + std::to_string(total) + " are free): " + reason);
}

}  // namespace zerorun
