#include "cuda/cuda_streams.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/deadline.h"
#include "cuda/cuda_check.h"
#include "cuda/current_gpu.h"

namespace zerorun {
namespace {

using c10::cuda::CUDAStream;

class CudaEvent : public Event::State {
 public:
  CudaEvent() { ZR_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t get() const { return event_; }
  StreamId stream = 0;  // the stream on which the event was last recorded

 private:
  cudaEvent_t event_ = nullptr;
};

CUDAStream cuda_stream(c10::Device device, StreamId stream) {
  return CUDAStream(CUDAStream::UNCHECKED, c10::Stream(c10::Stream::UNSAFE, device, stream));
}

const CudaEvent& cuda_event(const Event& event) {
  return static_cast<const CudaEvent&>(*event.state);
}

bool has_passed(const CudaEvent& event) {
  const cudaError_t status = cudaEventQuery(event.get());
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // clears cudaErrorNotReady, so that a later check does not report it
    return false;
  }
  check_cuda(status, "cudaEventQuery");
  return true;
}

std::string missed(const std::string& what, c10::Device device, std::chrono::milliseconds timeout) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%g", static_cast<double>(timeout.count()) / 1000);
  return what + ": GPU " + std::to_string(device.index()) + " did not reach this point within " + seconds +
         " s";
}

}  // namespace

// Another thread may take streams from the pool at the same time, so the pool may return a lane's stream
// again within three calls.
CudaStreams::CudaStreams(c10::Device device) : device_(device) {
  for (size_t i = 0; i < lanes_.size();) {
    const CUDAStream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device_.index());
    if (std::find(ids_.begin(), ids_.begin() + i, stream.id()) != ids_.begin() + i) continue;
    lanes_[i] = stream.stream();
    ids_[i++] = stream.id();
  }
}

CudaStreams::~CudaStreams() = default;

StreamId CudaStreams::current() const {
  return c10::cuda::getCurrentCUDAStream(device_.index()).id();
}

void CudaStreams::set_current(StreamId stream) {
  const StreamId outer = current();
  if (stream == outer) return;
  c10::cuda::setCurrentCUDAStream(cuda_stream(device_, stream));
  if (!timed_) return;
  if (const auto lane = lane_of(outer)) timer_->leave(*lane);
  if (const auto lane = lane_of(stream)) timer_->enter(*lane);
}

void CudaStreams::record(Event& event, StreamId stream) {
  const cudaStream_t recorded = usable(stream);
  if (!event.state) event.state = std::make_unique<CudaEvent>();
  auto& state = static_cast<CudaEvent&>(*event.state);
  ZR_CUDA(cudaEventRecord(state.get(), recorded));
  state.stream = stream;
}

void CudaStreams::wait(const Event& event, StreamId stream, Handover handover) {
  if (!event.state) return;
  const CudaEvent& state = cuda_event(event);
  if (state.stream == stream) return;  // a stream executes its own work in order
  const cudaStream_t waiting = usable(stream);
  if (!timed_) {
    ZR_CUDA(cudaStreamWaitEvent(waiting, state.get(), 0));
  } else if (const auto lane = lane_of(stream)) {
    timer_->wait(*lane, state.get());
  } else {
    timer_->wait(waiting, state.get(), handover);
  }
}

// Polls, because cudaEventSynchronize() has no timeout and cannot be interrupted. Any thread may wait: it
// need not have set a GPU, and another of its streams may be in a capture that a query would otherwise end.
void CudaStreams::await(const Event& event, std::chrono::milliseconds timeout, const std::string& what) {
  using namespace std::chrono_literals;
  if (!event.state) return;
  const CudaEvent& state = cuda_event(event);
  const CurrentGpu current(device_.index());
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  const Deadline deadline(timeout);
  const auto spin_until = Deadline::Clock::now() + 50us;
  for (std::chrono::microseconds pause = 10us; !has_passed(state);) {
    const auto now = Deadline::Clock::now();
    if (now < spin_until) continue;
    run_checks();  // before the timeout, because the error of a check is more specific
    if (now >= deadline.end()) throw CommError(missed(what, device_, timeout));
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, 50us);
  }
}

void CudaStreams::time(bool on) {
  if (on && !timer_) timer_ = std::make_unique<StreamTimer>(lanes_);
  timed_ = on;
}

StreamTimes CudaStreams::take_times() {
  return timer_ ? timer_->take() : StreamTimes{};
}

void CudaStreams::begin_range(const char* name) {
  nvtxRangePushA(name);
}

void CudaStreams::end_range() {
  nvtxRangePop();
}

// A thread that has never set a GPU uses GPU 0. LibTorch's threads and the constructor's thread have the
// right GPU, so this function does not set the current GPU. It only checks it, which takes nanoseconds.
cudaStream_t CudaStreams::handle(StreamId stream) const {
  const c10::DeviceIndex chosen = c10::cuda::current_device();
  if (chosen != device_.index()) {
    const std::string mine = std::to_string(device_.index());
    throw UserError("this thread works on GPU " + std::to_string(chosen) + ", the engine on GPU " + mine +
                    ": call c10::cuda::set_device(" + mine + ") in the thread first");
  }
  return cuda_stream(device_, stream).stream();
}

// Like handle(), but throws UserError if no event can order the stream's work: because it is being captured
// into a CUDA graph, or because the program has destroyed it. The engine records the end of a stream's uses
// when the memory changes hands, which may be long after them. While another stream is captured, the query of
// the legacy default stream fails.
cudaStream_t CudaStreams::usable(StreamId stream) const {
  const cudaStream_t checked = handle(stream);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t status = cudaStreamIsCapturing(checked, &capture);
  if (status == cudaErrorStreamCaptureImplicit || capture != cudaStreamCaptureStatusNone) {
    cudaGetLastError();
    throw UserError(
        "a CUDA graph is being captured while the engine works: forward, backward and step() with parameters "
        "of the engine cannot be part of a CUDA graph; end the capture before, or capture without the "
        "engine");
  }
  if (status == cudaErrorInvalidResourceHandle || status == cudaErrorContextIsDestroyed) {
    cudaGetLastError();
    throw UserError(std::string("a stream on which the program has used the engine's parameters is gone (") +
                    cudaGetErrorString(status) + "): keep such streams until the engine is destroyed");
  }
  check_cuda(status, "cudaStreamIsCapturing");
  return checked;
}

int CudaStreams::add_check(std::function<void()> check) {
  const std::lock_guard lock(checks_mutex_);
  checks_.emplace(next_check_, std::move(check));
  return next_check_++;
}

void CudaStreams::remove_check(int check) {
  const std::lock_guard lock(checks_mutex_);
  checks_.erase(check);
}

std::optional<Lane> CudaStreams::lane_of(StreamId stream) const {
  const auto found = std::find(ids_.begin(), ids_.end(), stream);
  if (found == ids_.end()) return std::nullopt;
  return static_cast<Lane>(found - ids_.begin());
}

void CudaStreams::run_checks() {
  const std::lock_guard lock(checks_mutex_);
  for (const auto& [number, check] : checks_) check();
}

}  // namespace zerorun
