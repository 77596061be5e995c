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
  /// New buffers have at least `common_numel` elements, so that each serves every bucket up to that size.
  BufferPool(Communicator& communicator, at::ScalarType dtype, int64_t common_numel)
      : communicator_(&communicator), dtype_(dtype), common_numel_(common_numel) {}

  /// Returns a buffer of `numel` elements with arbitrary contents: the smallest free buffer that is large
  /// enough (among equal sizes the one given back first), or else a new buffer. Not a collective.
  CommunicationBuffer take(int64_t numel);
  void give_back(CommunicationBuffer buffer) { free_.push_back(std::move(buffer)); }

  /// Makes `count` buffers of the common size, so that the first use allocates nothing. A collective.
  void reserve(int count);
  /// Frees the buffers that are not in use, except the reserved buffers and the `count` largest of the
  /// buffers that are larger than the common size.
  void trim(int count);

  int64_t bytes() const { return bytes_; }  // of all buffers, free or in use

 private:
  CommunicationBuffer own(at::Tensor memory);

  Communicator* communicator_;
  at::ScalarType dtype_;
  int64_t common_numel_;
  std::vector<CommunicationBuffer> free_;
  int64_t bytes_ = 0;
};

}  // namespace zerorun
