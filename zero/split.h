// How a parameter is divided among the ranks of a tensor group (comm/mesh.h). A plain value.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "zero/layout.h"

namespace zerorun {

/// A parameter that is split along dimension `dim`: rank r of the tensor group has the indices
/// `parts[r]` along `dim`, in this order.
struct Split {
  int64_t dim;
  int64_t whole;                          // the size of the whole parameter along `dim`
  std::vector<std::vector<Range>> parts;  // by tensor rank
  /// Whether the results of products that are divided along the parameter's outputs are gathered, so that the
  /// program sees them whole.
  bool gathers = false;

  /// Whether both cut at the same indices, whatever the dimension.
  bool cuts_like(const Split& other) const;
  /// The size of rank `rank`'s part along `dim`.
  int64_t size_of_part(int rank) const;
  /// The size of the largest part along `dim`.
  int64_t largest_part() const;
};

/// The sizes of rank `rank`'s part of a tensor of `sizes`.
std::vector<int64_t> sizes_of_part(at::IntArrayRef sizes, const Split& split, int rank);
/// part = rank `rank`'s part of `whole`.
void copy_part(const at::Tensor& part, const at::Tensor& whole, const Split& split, int rank);
/// Writes `part` to its place in `whole`.
void copy_to_whole(const at::Tensor& whole, const at::Tensor& part, const Split& split, int rank);

}  // namespace zerorun
