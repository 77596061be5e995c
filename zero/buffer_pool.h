// Flat buffers that gradients travel in, reused from bucket to bucket. Owned by the gradient reducer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

/// A buffer travels with the event that says when it may be written again.
struct TravelBuffer {
  at::Tensor memory;  // 1-D
  Event free;
  bool reserved = false;  // it stays with the pool
};

class BufferPool {
 public:
  /// Buffers of up to `common_numel` elements are made that large, so that any of them serves any common
  /// bucket.
  BufferPool(Communicator& communicator, at::ScalarType dtype, int64_t common_numel)
      : communicator_(&communicator), dtype_(dtype), common_numel_(common_numel) {}

  /// One of `numel` elements with arbitrary contents: the smallest free buffer that holds it, of equals the
  /// one that was given back first, or a new one. Ranks need not take alike.
  TravelBuffer take(int64_t numel);
  void give_back(TravelBuffer buffer) { free_.push_back(std::move(buffer)); }

  /// Makes `count` buffers of the common size, so that the first use allocates nothing. A collective.
  void reserve(int count);
  /// Of the buffers that are not in use frees all but the reserved ones and, among those that hold more, the
  /// `count` largest.
  void trim(int count);

  int64_t bytes() const { return bytes_; }  // of free buffers and those in use

 private:
  TravelBuffer own(at::Tensor memory);

  Communicator* communicator_;
  at::ScalarType dtype_;
  int64_t common_numel_;
  std::vector<TravelBuffer> free_;
  int64_t bytes_ = 0;
};

}  // namespace zerorun
