// The operators of a block's graph, by which a recomputation is compared with the forward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <typeindex>
#include <vector>

#include "activations/block_tensors.h"

namespace zerorun {

/// An operator that autograd has recorded.
struct BlockOperator {
  std::type_index node;  // of autograd
  size_t results;        // a hash of their sizes and dtypes
  friend bool operator==(const BlockOperator&, const BlockOperator&) = default;
};

/// The next operator that this thread records has this number or a larger one.
uint64_t next_operator();
/// The operators that this thread has recorded since next_operator() was `begin`, and on which `outputs`
/// depend, in the order of their calls. Without casts, which autocast may have cached.
std::vector<BlockOperator> operators_behind(const Tensors& outputs, uint64_t begin);
/// Names the first operator in which the two differ, as "operator 2 of 5 is ReluBackward0, before
/// MulBackward0" (autograd's names); empty: they are equal.
std::string describe_difference(const std::vector<BlockOperator>& now,
                                const std::vector<BlockOperator>& before);

}  // namespace zerorun
