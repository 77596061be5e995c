// The streams of one GPU, as LibTorch's operators and CUDA see them alike. Owned by a CudaDevice; any thread
// whose current GPU it is.
//
// Numbers of streams are LibTorch's (c10::StreamId), so that the program's own streams take part. The lanes
// are streams of their own, of the highest priority: what they do is short, and others wait for it.
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
  /// GPU `device` is the calling thread's current one.
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

  /// As CUDA's runtime knows `stream`.
  cudaStream_t handle(StreamId stream) const;

  /// From now on await() calls `check` about every millisecond: what it throws ends the wait. For what makes
  /// a wait pointless, as a communicator that was aborted. Returns what remove_check() takes.
  int add_check(std::function<void()> check);
  /// When it returns, the check is not running and will not be called again. Not to be called by a check.
  void remove_check(int check);

 private:
  std::optional<Lane> lane_of(StreamId stream) const;
  void run_checks();

  c10::Device device_;
  std::array<cudaStream_t, kStreamLanes> lanes_{};
  std::array<StreamId, kStreamLanes> ids_{};
  std::unique_ptr<StreamTimer> timer_;  // made when times are first measured
  std::atomic<bool> timed_ = false;
  std::mutex checks_mutex_;
  std::map<int, std::function<void()>> checks_;
  int next_check_ = 0;
};

}  // namespace zerorun
