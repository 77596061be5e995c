// One piece of memory for the inputs that recomputed blocks keep (DeepSpeed's
// contiguous_memory_optimization): kept tensors of many layers, which are freed long after they were made,
// then leave no holes between other tensors. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace zerorun {

class KeptBuffer {
 public:
  /// `blocks`: how many inputs it has room for (number_checkpoints), of the size of the first one. Absent: as
  /// many as are kept at a time until none is kept for the first time; those have memory of their own.
  explicit KeptBuffer(std::optional<int64_t> blocks);

  /// A copy of a 1-D tensor: in the buffer, or if that has no room for it, in memory of its own. Its part of
  /// the buffer is free again once the copy is.
  at::Tensor copy(const at::Tensor& flat);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the copies
};

}  // namespace zerorun
