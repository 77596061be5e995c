// A library with one function: it keeps the GPU's current stream busy. gpu_ranks_test loads it after
// libzerorun_cuda.so, because LibTorch's CUDA library may be missing on a machine without a GPU.
#include <ATen/cuda/Sleep.h>

#include <cstdint>

namespace {

constexpr int64_t kCyclesPerMicrosecond = 1500;  // GPUs run at 1.1 to 2 GHz, and delays need not be exact

}  // namespace

extern "C" __attribute__((visibility("default"))) void zerorun_delay_stream(int64_t microseconds) {
  at::cuda::sleep(microseconds * kCyclesPerMicrosecond);
}
