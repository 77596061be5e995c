// The streams of one GPU, shared with LibTorch's operators. Owned by a CudaDevice. Usable by any thread whose
// current GPU is this one.
//
// A stream's id is LibTorch's (c10::StreamId), so the program's own streams have ids too. The lanes
// (device/streams.h) are separate streams of high priority, because their work is short and the compute
// stream waits for it. They come from LibTorch's pool and are never destroyed: memory that LibTorch's
// allocator keeps for a stream must not outlive it. The pool has 32 such streams for each GPU and hands them
// out in turns. So if a process has more than 10 engines on a GPU, or the program takes streams from the pool
// itself, two of them may share a stream. Their work is then done in the order in which it was started:
// nothing changes but how much of it overlaps.
//
// CUDA graphs cannot contain the engine's work, because its streams wait for events from outside the capture.
// record() and wait() throw UserError on a stream that is being captured.
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

  /// Registers a function that await() calls while it waits, many times a millisecond. An exception from
  /// `check` ends the wait, for example after the communicator was aborted. Returns an id for remove_check().
  int add_check(std::function<void()> check);
  /// When it returns, the check is not running and is never called again. Must not be called by a check.
  void remove_check(int check);

 private:
  cudaStream_t usable(StreamId stream) const;
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
