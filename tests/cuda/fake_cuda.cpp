#include "tests/cuda/fake_cuda.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace zerorun::testing {
namespace {

thread_local int current_gpu = 0;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

std::mutex locked_mutex;
std::map<void*, size_t> locked;  // by address: bytes of cudaHostRegister()

// What every call does that needs a context.
void need_context() {
  fake_cuda().has_context[current_gpu] = true;
}

}  // namespace

FakeCuda& fake_cuda() {
  static FakeCuda fake;
  return fake;
}

void reset_fake_cuda() {
  FakeCuda& fake = fake_cuda();
  for (auto& has : fake.has_context) has = false;
  fake.set_device_calls = 0;
  fake.free_memory = size_t{64} << 30;
  fake.queries = 0;
  fake.events_pass = true;
  fake.refuses_host_memory = false;
  fake.captured = nullptr;
  fake.destroyed = nullptr;
}

}  // namespace zerorun::testing

namespace fake = zerorun::testing;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake::FakeCuda::kGpus;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = fake::current_gpu;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* address, int length, int device) {
  std::snprintf(address, static_cast<size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device));
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  fake::current_gpu = device;
  ++fake::fake_cuda().set_device_calls;
  fake::need_context();
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  fake::need_context();
  if (const auto act = fake::fake_cuda().on_synchronize.load()) act();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  fake::need_context();
  *stream =
      reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(0x1000 + ++fake::fake_cuda().streams_created));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
  ++fake::fake_cuda().streams_destroyed;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const cudaStream_t captured = fake::fake_cuda().captured;
  *status = cudaStreamCaptureStatusNone;
  if (stream != nullptr && stream == fake::fake_cuda().destroyed) return cudaErrorInvalidResourceHandle;
  if (captured != nullptr && stream == nullptr) return cudaErrorStreamCaptureImplicit;
  if (captured != nullptr && stream == captured) *status = cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, fake::capture_mode);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  fake::need_context();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  fake::need_context();
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  fake::need_context();
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (fake::fake_cuda().refuses_host_memory) return cudaErrorMemoryAllocation;
  ++fake::fake_cuda().host_allocations;
  *memory = std::malloc(bytes);
  std::memset(*memory, 'x', bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  fake::need_context();
  --fake::fake_cuda().host_allocations;
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  if (fake::fake_cuda().refuses_host_memory) return cudaErrorMemoryAllocation;
  fake::fake_cuda().locked_bytes += static_cast<int64_t>(bytes);
  const std::lock_guard lock(fake::locked_mutex);
  fake::locked[memory] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* memory) {
  fake::need_context();
  const std::lock_guard lock(fake::locked_mutex);
  fake::fake_cuda().locked_bytes -= static_cast<int64_t>(fake::locked.at(memory));
  fake::locked.erase(memory);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = fake::fake_cuda().free_memory;
  *total = size_t{80} << 30;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  fake::need_context();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  fake::need_context();
  *event = reinterpret_cast<cudaEvent_t>(new int);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<int*>(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  fake::need_context();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) {
  fake::need_context();
  ++fake::fake_cuda().queries;
  fake::fake_cuda().mode_of_query = fake::capture_mode;
  return fake::fake_cuda().events_pass ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorInvalidResourceHandle ? "invalid resource handle" : "an error";
}

const char* cudaGetErrorName(cudaError_t) {
  return "cudaError";
}

}  // extern "C"
