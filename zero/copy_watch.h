// Warns once about full copies that a model makes of partitioned parameters: autograd's graph keeps them
// until backward, and no limit counts them. Owned by Residency, used under its lock.
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
  /// Ends the iteration. If it copied parameters, logs a warning (if `logs`) and ends the counting for good.
  void finish_iteration(bool logs);

 private:
  c10::OperatorHandle to_copy_;
  int64_t bytes_ = 0;
  bool done_ = false;
};

}  // namespace zerorun
