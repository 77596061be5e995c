// Warns once if a model makes full copies of partitioned parameters. Autograd's graph keeps the copies until
// backward, and no memory limit includes them. Owned by Residency, used under its lock.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <span>

#include "zero/interception.h"

namespace zerorun {

class CopyWatch {
 public:
  CopyWatch();

  /// Counts the bytes of the parameters if `op` copies them.
  void note(const c10::OperatorHandle& op, std::span<const Touched> touched);
  /// Counts the copy of this tensor, which note() has counted, no more.
  void forget(const at::Tensor& source);
  /// Ends the iteration. If parameters were copied in it, logs a warning (if `logs`) and stops counting
  /// permanently.
  void finish_iteration(bool logs);

 private:
  c10::OperatorHandle to_copy_;
  int64_t bytes_ = 0;
  bool done_ = false;
};

}  // namespace zerorun
