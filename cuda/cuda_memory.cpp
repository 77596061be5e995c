#include "cuda/cuda_memory.h"

#include <map>
#include <mutex>

#include "base/error.h"
#include "cuda/cuda_check.h"

namespace zerorun {
namespace {

// Returns the current GPU's stream for filling memory, which exists until the process ends. Nothing else runs
// on it, so it never waits for earlier work that in turn waits for another rank.
cudaStream_t filling_stream() {
  static std::mutex mutex;
  static std::map<int, cudaStream_t> streams;  // by GPU
  int device = 0;
  ZR_CUDA(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  cudaStream_t& stream = streams[device];
  if (stream == nullptr) ZR_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

}  // namespace

void fill_with_zeros(void* memory, size_t bytes) {
  const cudaStream_t stream = filling_stream();
  ZR_CUDA(cudaMemsetAsync(memory, 0, bytes, stream));
  ZR_CUDA(cudaStreamSynchronize(stream));
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
