#include "zero/cast_watch.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <utility>

namespace zerorun {
namespace {

// How deep autocast was nested when the thread's CastWatch began; 0: it has none.
thread_local int watched_depth = 0;

int autocast_depth() {
  const int deeper = at::autocast::increment_nesting();
  at::autocast::decrement_nesting();
  return deeper - 1;
}

}  // namespace

CastWatch::CastWatch() : outer_(std::exchange(watched_depth, std::max(1, autocast_depth()))) {}

CastWatch::~CastWatch() {
  watched_depth = outer_;
}

// While autocast's own code runs, the thread is without autocast.
bool CastWatch::is_in_autocast(c10::Device device) {
  return watched_depth > 0 && (device.is_cpu() || device.is_cuda()) &&
         !at::autocast::is_autocast_enabled(device.type()) && autocast_depth() == watched_depth;
}

CastWatchPause::CastWatchPause() : outer_(std::exchange(watched_depth, 0)) {}

CastWatchPause::~CastWatchPause() {
  watched_depth = outer_;
}

}  // namespace zerorun
