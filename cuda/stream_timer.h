// Measures with CUDA events how long lanes (device/streams.h) work, and how long the compute stream waits for
// them. Owned by CudaStreams. Any thread.
//
// Each measurement records one event before and one after the work on the work's stream, and reads the
// difference when both have passed. The events are from a fixed pool, so measured steps allocate nothing.
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
  /// The streams' GPU must be the current one. `spans` is the maximum number of measurements in flight.
  explicit StreamTimer(const std::array<cudaStream_t, kStreamLanes>& lanes, size_t spans = 4096);
  ~StreamTimer();
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  /// A thread begins or ends work on a lane. If several threads work on one lane at once, the time from the
  /// first enter() to the last leave() is counted once.
  void enter(Lane lane);
  void leave(Lane lane);
  /// Makes `stream`, which is not a lane, wait for `event`, and measures the wait.
  void wait(cudaStream_t stream, cudaEvent_t event, Handover handover);
  /// Makes a lane wait for `event`. The wait does not count as work of the lane.
  void wait(Lane lane, cudaEvent_t event);

  StreamTimes take();

 private:
  static constexpr size_t kMissed = ~size_t{0};  // marks a span that is not measured
  struct Span {
    cudaEvent_t begin;
    cudaEvent_t end;
    cudaStream_t stream;
    double* total;  // where to add the measured time, in times_
  };
  struct Scope {
    int depth = 0;
    size_t span = kMissed;  // span of the current work, if `depth` is not 0
  };

  // These do not throw, because a scope's destructor calls them. They count a failure as a missed span; the
  // CUDA error is reported by the measured work itself.
  size_t begin(cudaStream_t stream, double& total);
  void end(size_t span);
  void collect();

  std::array<cudaStream_t, kStreamLanes> lanes_;
  std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<size_t> free_;      // spans that are not in use
  std::vector<size_t> finished_;  // spans whose end event has been recorded
  std::array<Scope, kStreamLanes> scopes_;
  StreamTimes times_;
};

}  // namespace zerorun
