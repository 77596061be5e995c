#include "cuda/cached_memory.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

namespace zerorun {

void free_cached_memory() {
  cudaDeviceSynchronize();
  cudaGetLastError();  // an earlier failed allocation is no error of the calls below
  c10::cuda::CUDACachingAllocator::emptyCache();
}

}  // namespace zerorun
