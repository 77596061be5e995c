#include "tests/cuda/fake_gpu.h"

#include <cuda_runtime_api.h>

#include <atomic>

#include "base/error.h"
#include "cuda/cached_memory.h"
#include "cuda/cuda_check.h"
#include "cuda/cuda_memory.h"
#include "tests/cuda/fake_nccl.h"

struct CUevent_st {
  std::atomic<bool> passed = false;
};

namespace zerorun {
namespace {

thread_local int device_calls = 0;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
std::atomic<int> forbidden = 0;
std::atomic<bool> passing = true;

}  // namespace

namespace testing {

int FakeGpu::set_device_calls() {
  return device_calls;
}

bool FakeGpu::relaxed() {
  return capture_mode == cudaStreamCaptureModeRelaxed;
}

int FakeGpu::forbidden_queries() {
  return forbidden;
}

void FakeGpu::let_events_pass(bool pass) {
  passing = pass;
}

}  // namespace testing

// Substitutes for functions of cuda/ that need LibTorch's CUDA library.

void free_cached_memory() {
  testing::fake_nccl().free_cache();
}

void fill_with_zeros(void* memory, size_t bytes) {
  std::fill_n(static_cast<char*>(memory), bytes, '\0');
}

void fail_allocation(const std::string& whose, size_t bytes, const char* reason) {
  throw Error(whose + " has no " + std::to_string(bytes) + " bytes: " + reason);
}

}  // namespace zerorun

using namespace zerorun;
using zerorun::testing::FakeGpu;

extern "C" {

cudaError_t cudaSetDevice(int) {
  ++device_calls;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "a failure of CUDA";
}
const char* cudaGetErrorName(cudaError_t) {
  return "failure";
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->passed = passing.load();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!FakeGpu::relaxed()) ++forbidden;
  return event->passed ? cudaSuccess : cudaErrorNotReady;
}

}  // extern "C"
