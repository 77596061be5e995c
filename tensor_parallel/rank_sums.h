// The three functions between values that all tensor ranks have whole and values that are split among them
// (Megatron-LM, arXiv:1909.08053, section 3: f and g). Autograd records them. They may be called on any
// thread, but in the same order on all ranks of the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "comm/mesh.h"
#include "zero/split.h"

namespace zerorun {

/// The ranks of a tensor group. Lives as long as a graph needs it.
class TensorGroup {
 public:
  explicit TensorGroup(const Mesh& mesh) : mesh_(mesh) {}

  Communicator& communicator() const { return mesh_.along(MeshAxis::tensor); }
  int rank() const { return communicator().rank(); }
  int size() const { return communicator().world_size(); }

 private:
  Mesh mesh_;
};
using TensorGroupPtr = std::shared_ptr<const TensorGroup>;

/// Megatron's f: returns `whole`, whose gradient is the sum of the ranks' gradients. `label` names the sum in
/// messages.
at::Tensor to_ranks(const at::Tensor& whole, const TensorGroupPtr& group, const std::string& label);
/// Megatron's g: returns the sum over ranks, in place if `summand` is contiguous: the caller must not use it
/// any more. The gradient of the sum is that of each summand.
at::Tensor sum_over_ranks(const at::Tensor& summand, const TensorGroupPtr& group, const std::string& label);
/// Returns `part` of all ranks, placed along the last dimension as `split` places the parts of a parameter.
/// Each rank has the same gradient of the result, and keeps that of its part.
at::Tensor gather_over_ranks(const at::Tensor& part, const Split& split, const TensorGroupPtr& group,
                             const std::string& label);

/// The whole of a parameter or state of which `part` is this rank's part. A collective of the group.
at::Tensor whole_of(const at::Tensor& part, const Split& split, const TensorGroupPtr& group,
                    const std::string& label);
/// This rank's part of `whole`, with memory of its own.
at::Tensor part_of(const at::Tensor& whole, const Split& split, const TensorGroup& group);

}  // namespace zerorun
