// Flat buffers in which gradients are sent, reused from bucket to bucket. Owned by the gradient reducer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

/// A buffer, with the event after which it may be written again.
struct TravelBuffer {
  at::Tensor memory;  // 1-D
  Event free;
  bool reserved = false;  // trim() keeps it
};

class BufferPool {
 public:
  /// Smaller buffers are made `common_numel` elements large, so that each of them fits any common bucket.
  BufferPool(Communicator& communicator, at::ScalarType dtype, int64_t common_numel)
      : communicator_(&communicator), dtype_(dtype), common_numel_(common_numel) {}

  /// A buffer for `numel` elements with arbitrary contents: the smallest free one (of equal ones the one
  /// given back first), or a new one. Ranks need not call alike.
  TravelBuffer take(int64_t numel);
  void give_back(TravelBuffer buffer) { free_.push_back(std::move(buffer)); }

  /// Makes `count` buffers of the common size, so that the first use allocates nothing. A collective.
  void reserve(int count);
  /// Frees unused buffers, except the reserved ones and, of the buffers above the common size, the `count`
  /// largest.
  void trim(int count);

  int64_t bytes() const { return bytes_; }  // of all buffers, free and in use

 private:
  TravelBuffer own(at::Tensor memory);

  Communicator* communicator_;
  at::ScalarType dtype_;
  int64_t common_numel_;
  std::vector<TravelBuffer> free_;
  int64_t bytes_ = 0;
};

}  // namespace zerorun
