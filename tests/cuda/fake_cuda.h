// A substitute for the CUDA runtime: eight GPUs that do no work. LibTorch's libc10_cuda.so calls it too, so
// its pool of streams is the real one. It records which GPUs have a context, as the runtime of CUDA 12 and
// later creates them. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

namespace zerorun::testing {

struct FakeCuda {
  static constexpr int kGpus = 8;

  std::array<std::atomic<bool>, kGpus> has_context{};
  std::atomic<int> streams_created = 0;
  std::atomic<int> streams_destroyed = 0;
  std::atomic<int> set_device_calls = 0;
  std::atomic<size_t> free_memory = size_t{64} << 30;
  std::atomic<int> host_allocations = 0;  // of cudaHostAlloc(), not freed yet
  std::atomic<int64_t> locked_bytes = 0;  // by cudaHostRegister()
  std::atomic<bool> refuses_host_memory = false;
  std::atomic<int> queries = 0;                  // of events
  std::atomic<bool> events_pass = true;          // else a query says "not ready"
  std::atomic<cudaStream_t> captured = nullptr;  // the stream that is being captured
  std::atomic<cudaStream_t> destroyed = nullptr;
  /// The calling thread's capture mode at the last query of an event.
  std::atomic<cudaStreamCaptureMode> mode_of_query = cudaStreamCaptureModeGlobal;
  std::atomic<void (*)()> on_synchronize = nullptr;  // what cudaDeviceSynchronize() calls
};

FakeCuda& fake_cuda();

/// Forgets all contexts. Threads keep their current GPU.
void reset_fake_cuda();

}  // namespace zerorun::testing
