#include "cuda/stream_probe.h"

#include <thread>
#include <utility>

#include "cuda/cuda_check.h"

namespace zerorun {

StreamProbe::~StreamProbe() {
  for (const Events& events : events_) {
    cudaEventDestroy(events.before);
    cudaEventDestroy(events.after);
  }
}

void StreamProbe::add(std::shared_ptr<NcclComms> comms) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(std::move(comms));
}

std::vector<std::shared_ptr<NcclComms>> StreamProbe::all() const {
  const std::lock_guard lock(mutex_);
  return comms_;
}

// All at once: an abort waits for the GPU, where kernels of other communicators may wait for their own abort.
void StreamProbe::abort() {
  std::vector<std::thread> aborts;
  for (const auto& comms : all()) aborts.emplace_back([comms] { comms->abort(); });
  for (std::thread& one : aborts) one.join();
}

void StreamProbe::record_before(size_t slot, cudaStream_t stream) {
  ZR_CUDA(cudaEventRecord(events_of(slot).before, stream));
}

void StreamProbe::record_after(size_t slot, cudaStream_t stream) {
  ZR_CUDA(cudaEventRecord(events_of(slot).after, stream));
}

StreamProbe::Events StreamProbe::events_of(size_t slot) {
  const std::lock_guard lock(mutex_);
  return events_[slot];
}

void StreamProbe::prepare(size_t count) {
  const std::lock_guard lock(mutex_);
  while (events_.size() < count) {
    Events events{};
    ZR_CUDA(cudaEventCreateWithFlags(&events.before, cudaEventDisableTiming));
    ZR_CUDA(cudaEventCreateWithFlags(&events.after, cudaEventDisableTiming));
    events_.push_back(events);
  }
}

bool StreamProbe::started(size_t slot) {
  return has_passed(events_of(slot).before);
}

bool StreamProbe::finished(size_t slot) {
  return has_passed(events_of(slot).after);
}

// A thread that has not set a GPU would create a context on GPU 0. In relaxed mode the thread's queries do
// not break a capture of a CUDA graph by another thread of the program.
void StreamProbe::enter_thread() {
  cudaSetDevice(device_);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
}

bool StreamProbe::has_passed(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaSuccess) return true;
  cudaGetLastError();
  if (status != cudaErrorNotReady) cuda_failure_ = cudaGetErrorString(status);
  return false;
}

std::string StreamProbe::failure() {
  if (!cuda_failure_.empty()) return "GPU " + std::to_string(device_) + " failed: " + cuda_failure_;
  for (const auto& comms : all()) {
    if (std::string failure = comms->failure(); !failure.empty()) return failure;
  }
  return "";
}

}  // namespace zerorun
