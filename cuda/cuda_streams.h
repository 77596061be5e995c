// The streams of one GPU, shared with LibTorch's operators. Owned by a CudaDevice. Usable by any thread whose
// current GPU is this one.
//
// A stream's id is LibTorch's (c10::StreamId), so the program's own streams have ids too. The lanes
// (device/streams.h) are separate streams with the highest priority, because their work is short and the
// compute stream waits for it.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cuda/stream_timer.h"
#include "device/streams.h"

namespace zerorun {

class CudaStreams : public Streams {
 public:
  /// `device` must be the current GPU of the calling thread.
  explicit CudaStreams(c10::Device device);
  ~CudaStreams() override;
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  bool asynchronous() const override { return true; }
  StreamId current() const override;
  void set_current(StreamId stream) override;
  StreamId of(Lane lane) const override { return ids_[static_cast<size_t>(lane)]; }
  void record(Event& event, StreamId stream) override;
  void wait(const Event& event, StreamId stream, Handover handover) override;
  void await(const Event& event, std::chrono::milliseconds timeout, const std::string& what) override;
  void time(bool on) override;
  StreamTimes take_times() override;
  void begin_range(const char* name) override;
  void end_range() override;

  /// Returns the CUDA handle of `stream`. Throws UserError if the calling thread's current GPU is a different
  /// one.
  cudaStream_t handle(StreamId stream) const;

  /// Registers a function that await() calls about every millisecond. An exception from `check` ends the
  /// wait, for example after the communicator was aborted. Returns an id for remove_check().
  int add_check(std::function<void()> check);
  /// When it returns, the check is not running and is never called again. Must not be called by a check.
  void remove_check(int check);

 private:
  std::optional<Lane> lane_of(StreamId stream) const;
  void run_checks();

  c10::Device device_;
  std::array<cudaStream_t, kStreamLanes> lanes_{};
  std::array<StreamId, kStreamLanes> ids_{};
  std::unique_ptr<StreamTimer> timer_;  // created when timing is first enabled
  std::atomic<bool> timed_ = false;
  std::mutex checks_mutex_;
  std::map<int, std::function<void()>> checks_;
  int next_check_ = 0;
};

}  // namespace zerorun
