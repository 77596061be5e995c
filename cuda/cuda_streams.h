// The streams of one GPU, shared with LibTorch's operators. Owned by a CudaDevice; any thread whose current
// GPU it is.
//
// Stream ids are LibTorch's (c10::StreamId), so that they cover the program's own streams too. The lanes are
// separate streams of the highest priority: their work is short, and compute waits for it.
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

  /// The CUDA handle of `stream`. Throws UserError when another GPU is the calling thread's current one.
  cudaStream_t handle(StreamId stream) const;

  /// From now on await() calls `check` about every millisecond; an exception from it ends the wait. For
  /// waits that have become pointless, as after a communicator's abort. Returns the id for remove_check().
  int add_check(std::function<void()> check);
  /// On return the check is not running and will not be called again. A check must not call this.
  void remove_check(int check);

 private:
  std::optional<Lane> lane_of(StreamId stream) const;
  void run_checks();

  c10::Device device_;
  std::array<cudaStream_t, kStreamLanes> lanes_{};
  std::array<StreamId, kStreamLanes> ids_{};
  std::unique_ptr<StreamTimer> timer_;  // created when timing is first switched on
  std::atomic<bool> timed_ = false;
  std::mutex checks_mutex_;
  std::map<int, std::function<void()>> checks_;
  int next_check_ = 0;
};

}  // namespace zerorun
