#include "cuda/cuda_streams.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/deadline.h"
#include "cuda/cuda_check.h"

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

const CudaEvent& state_of(const Event& event) {
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

CudaStreams::CudaStreams(c10::Device device) : device_(device) {
  int lowest = 0;
  int highest = 0;
  ZR_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  for (size_t i = 0; i < lanes_.size(); ++i) {
    ZR_CUDA(cudaStreamCreateWithPriority(&lanes_[i], cudaStreamNonBlocking, highest));
    ids_[i] = c10::cuda::getStreamFromExternal(lanes_[i], device_.index()).id();
  }
}

CudaStreams::~CudaStreams() {
  timer_.reset();
  for (cudaStream_t lane : lanes_) cudaStreamDestroy(lane);
}

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
  const cudaStream_t recorded = handle(stream);
  if (!event.state) event.state = std::make_unique<CudaEvent>();
  auto& state = static_cast<CudaEvent&>(*event.state);
  ZR_CUDA(cudaEventRecord(state.get(), recorded));
  state.stream = stream;
}

void CudaStreams::wait(const Event& event, StreamId stream, Handover handover) {
  if (!event.state) return;
  const CudaEvent& state = state_of(event);
  if (state.stream == stream) return;  // a stream executes its own work in order
  if (!timed_) {
    ZR_CUDA(cudaStreamWaitEvent(handle(stream), state.get(), 0));
  } else if (const auto lane = lane_of(stream)) {
    timer_->wait(*lane, state.get());
  } else {
    timer_->wait(handle(stream), state.get(), handover);
  }
}

// Polls, because cudaEventSynchronize() has no timeout and cannot be interrupted.
void CudaStreams::await(const Event& event, std::chrono::milliseconds timeout, const std::string& what) {
  using namespace std::chrono_literals;
  if (!event.state) return;
  const CudaEvent& state = state_of(event);
  const Deadline deadline(timeout);
  const auto spin_until = Deadline::Clock::now() + 50us;
  for (std::chrono::microseconds pause = 10us; !has_passed(state);) {
    const auto now = Deadline::Clock::now();
    if (now < spin_until) continue;
    run_checks();  // before the timeout, because the error of a check is more specific
    if (now >= deadline.end()) throw CommError(missed(what, device_, timeout));
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, 1ms);
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
