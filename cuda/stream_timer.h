// Measures how long lanes work and how long compute waits for them, with CUDA's timed events. Owned by
// CudaStreams; any thread.
//
// Each measurement records one event before and one after the work, on the work's stream; the time is the
// difference, read when both have passed. Events come from a fixed pool: measured steps allocate nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <mutex>
#include <vector>

#include "device/streams.h"

namespace zerorun {

class StreamTimer {
 public:
  /// The current device must be the streams' device. `spans`: maximum number of concurrent measurements.
  explicit StreamTimer(const std::array<cudaStream_t, kStreamLanes>& lanes, size_t spans = 4096);
  ~StreamTimer();
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  /// A thread begins or ends work on a lane. If scopes of several threads overlap on one lane, the time from
  /// the first enter() to the last leave() counts once.
  void enter(Lane lane);
  void leave(Lane lane);
  /// Makes `stream`, which is no lane, wait for `event`.
  void wait(cudaStream_t stream, cudaEvent_t event, Handover handover);
  /// Makes a lane wait for `event`; the wait does not count as work of the enclosing scope.
  void wait(Lane lane, cudaEvent_t event);

  StreamTimes take();

 private:
  static constexpr size_t kMissed = ~size_t{0};  // a span that is not measured
  struct Span {
    cudaEvent_t begin;
    cudaEvent_t end;
    cudaStream_t stream;
    double* total;  // in times_
  };
  struct Scope {
    int depth = 0;
    size_t span = kMissed;  // of the current work, if `depth` is not 0
  };

  // These do not throw, since a destructor ends a scope. They count failures as missed; the work itself will
  // report the CUDA error.
  size_t begin(cudaStream_t stream, double& total);
  void end(size_t span);
  void collect();

  std::array<cudaStream_t, kStreamLanes> lanes_;
  std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<size_t> free_;      // unused spans
  std::vector<size_t> finished_;  // spans whose end has been recorded
  std::array<Scope, kStreamLanes> scopes_;
  StreamTimes times_;
};

}  // namespace zerorun
