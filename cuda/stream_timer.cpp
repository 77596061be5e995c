#include "cuda/stream_timer.h"

#include <utility>

#include "cuda/cuda_check.h"

namespace zerorun {
StreamTimer::StreamTimer(const std::array<cudaStream_t, kStreamLanes>& lanes, size_t spans) : lanes_(lanes) {
  spans_.reserve(spans);
  free_.reserve(spans);
  finished_.reserve(spans);
  for (size_t i = 0; i < spans; ++i) {
    Span& span = spans_.emplace_back();
    ZR_CUDA(cudaEventCreate(&span.begin));
    ZR_CUDA(cudaEventCreate(&span.end));
    free_.push_back(i);
  }
}

StreamTimer::~StreamTimer() {
  for (const Span& span : spans_) {
    cudaEventDestroy(span.begin);
    cudaEventDestroy(span.end);
  }
}

void StreamTimer::enter(Lane lane) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(lane);
  Scope& scope = scopes_[index];
  if (scope.depth++ == 0) scope.span = begin(lanes_[index], times_.busy[index]);
}

void StreamTimer::leave(Lane lane) {
  const std::lock_guard lock(mutex_);
  Scope& scope = scopes_[static_cast<size_t>(lane)];
  if (scope.depth == 0) return;  // entered before timing was switched on
  if (--scope.depth == 0) end(scope.span);
}

void StreamTimer::wait(cudaStream_t stream, cudaEvent_t event, Handover handover) {
  const std::lock_guard lock(mutex_);
  const size_t span = begin(stream, times_.exposed[static_cast<size_t>(handover)]);
  ZR_CUDA(cudaStreamWaitEvent(stream, event, 0));
  end(span);
}

void StreamTimer::wait(Lane lane, cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(lane);
  Scope& scope = scopes_[index];
  if (scope.depth > 0) end(scope.span);
  ZR_CUDA(cudaStreamWaitEvent(lanes_[index], event, 0));
  if (scope.depth > 0) scope.span = begin(lanes_[index], times_.busy[index]);
}

StreamTimes StreamTimer::take() {
  const std::lock_guard lock(mutex_);
  collect();
  return std::exchange(times_, {});
}

size_t StreamTimer::begin(cudaStream_t stream, double& total) {
  if (free_.empty()) collect();
  if (free_.empty() || cudaEventRecord(spans_[free_.back()].begin, stream) != cudaSuccess) {
    ++times_.missed;
    return kMissed;
  }
  const size_t index = free_.back();
  free_.pop_back();
  spans_[index].stream = stream;
  spans_[index].total = &total;
  return index;
}

void StreamTimer::end(size_t span) {
  if (span == kMissed) return;
  if (cudaEventRecord(spans_[span].end, spans_[span].stream) == cudaSuccess) {
    finished_.push_back(span);
  } else {
    ++times_.missed;
    free_.push_back(span);
  }
}

// Adds the time of each finished span whose end event has passed to the span's total.
void StreamTimer::collect() {
  size_t kept = 0;
  for (const size_t index : finished_) {
    const Span& span = spans_[index];
    float milliseconds = 0;
    const cudaError_t status = cudaEventElapsedTime(&milliseconds, span.begin, span.end);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // clears cudaErrorNotReady: the work has not finished
      finished_[kept++] = index;
      continue;
    }
    if (status == cudaSuccess) {
      *span.total += milliseconds;
    } else {
      ++times_.missed;
    }
    free_.push_back(index);
  }
  finished_.resize(kept);
}

}  // namespace zerorun
