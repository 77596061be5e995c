// How long lanes work and compute waits for them, by CUDA's timed events. Owned by CudaStreams; any thread.
//
// Two events lie around everything that is measured, on its own stream; what lies between them when both have
// passed is the time. They come from a fixed stock, so that a step that is measured allocates nothing.
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
  /// The current device is the streams'. `spans`: how many waits and scopes may be under way at a time.
  explicit StreamTimer(const std::array<cudaStream_t, kStreamLanes>& lanes, size_t spans = 4096);
  ~StreamTimer();
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  /// A thread begins or ends work on a lane. Of scopes of several threads on one lane only the outermost
  /// counts.
  void enter(Lane lane);
  void leave(Lane lane);
  /// Makes `stream`, which is no lane, wait for `event`.
  void wait(cudaStream_t stream, cudaEvent_t event, Handover handover);
  /// Makes a lane wait for `event`: no work of the scope it may be in.
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
    size_t span = kMissed;  // of the work that goes on where `depth` is not 0
  };

  // These throw nothing, since the end of a scope is a destructor. What fails is missed; work itself will say
  // why.
  size_t begin(cudaStream_t stream, double& total);
  void end(size_t span);
  void collect();

  std::array<cudaStream_t, kStreamLanes> lanes_;
  std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<size_t> free_;      // spans
  std::vector<size_t> finished_;  // spans whose end has been recorded
  std::array<Scope, kStreamLanes> scopes_;
  StreamTimes times_;
};

}  // namespace zerorun
