// Communication buffers for gradients, reused from bucket to bucket. Owned by the gradient reducer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

/// A communication buffer and the event after which it may be written again.
struct CommunicationBuffer {
  at::Tensor memory;  // 1-D
  Event free;
  bool reserved = false;  // trim() does not free it
};

class BufferPool {
 public:
  /// Buffers of up to `common_numel` elements are made that large, so that any of them serves any common
  /// bucket.
  BufferPool(Communicator& communicator, at::ScalarType dtype, int64_t common_numel)
      : communicator_(&communicator), dtype_(dtype), common_numel_(common_numel) {}

  /// A buffer of `numel` elements with arbitrary contents: the smallest free one that is large enough (among
  /// equals the one given back first), or a new one. Not a collective.
  CommunicationBuffer take(int64_t numel);
  void give_back(CommunicationBuffer buffer) { free_.push_back(std::move(buffer)); }

  /// Makes `count` buffers of the common size, so that the first use allocates nothing. A collective.
  void reserve(int count);
  /// Frees buffers that are not in use, except the reserved ones and the `count` largest of those that exceed
  /// the common size.
  void trim(int count);

  int64_t bytes() const { return bytes_; }  // of free buffers and those in use

 private:
  CommunicationBuffer own(at::Tensor memory);

  Communicator* communicator_;
  at::ScalarType dtype_;
  int64_t common_numel_;
  std::vector<CommunicationBuffer> free_;
  int64_t bytes_ = 0;
};

}  // namespace zerorun
