// Tells the copies of parameters that autocast makes from those that a program makes ([Note: cast copies]).
// Concerns the calling thread.
#pragma once

#include <c10/core/Device.h>

namespace zerorun {

/// During its lifetime listeners are told of the copies that autocast makes in this thread, as it is set now:
/// not in a program's own torch.autocast inside of it.
class CastWatch {
 public:
  CastWatch();
  ~CastWatch();
  CastWatch(const CastWatch&) = delete;
  CastWatch& operator=(const CastWatch&) = delete;

  /// Whether this thread has one, and is in autocast's own code for tensors on `device`.
  static bool is_in_autocast(c10::Device device);

 private:
  int outer_;
};

/// During its lifetime listeners are told of no copies of this thread.
class CastWatchPause {
 public:
  CastWatchPause();
  ~CastWatchPause();
  CastWatchPause(const CastWatchPause&) = delete;
  CastWatchPause& operator=(const CastWatchPause&) = delete;

 private:
  int outer_;
};

}  // namespace zerorun
