// Sums of gradients that are sent in 8 bits (qgZ of ZeRO++, arXiv:2306.10209, section 3.3;
// zero_quantized_gradients): each rank sends every other rank that rank's slice quantized
// (zero/quantized_values.h), and each adds what it gets to its own part, in rank order, in float32. So every
// gradient is quantized once, and the sum is off by at most half a scale for each rank that sent.
//
// With a group of ranks, such as those of a host, these are summed exactly first. Then only ranks with the
// same place in their groups send to each other, the sums of their groups: a gradient crosses once for each
// group, and is quantized once for each.
//
// Owned by GradientReducer, used on its threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace zerorun {

class QuantizedReductions {
 public:
  /// `group`: consecutive ranks of `ranks`, in groups of equal size; null: each rank is its own group. Both
  /// must outlive this object. A collective on a GPU, where messages need connections.
  QuantizedReductions(bool enabled, Communicator& ranks, Communicator* group);

  bool enabled() const { return enabled_; }
  /// Communicator::reduce_scatter() of floating-point tensors. Returns once the group's sum is there and this
  /// rank has sent its messages; the rest is done by wait(). The input may be written again at once, except
  /// for slice `rank`, of which this rank's part is.
  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const std::string& label);

 private:
  class Reduction;

  int64_t members() const { return group_ ? group_->world_size() : 1; }
  int64_t groups() const { return ranks_->world_size() / members(); }
  at::Tensor sums_of_group(const at::Tensor& input, const std::string& label);

  bool enabled_;
  Communicator* ranks_;
  Communicator* group_;
};

}  // namespace zerorun
