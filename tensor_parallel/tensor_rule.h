// What operators on split parameters mean. A module computes with a parameter as if it were whole; this rule
// computes with this rank's part, and sums or gathers over the tensor group where the module needs it:
//
//   split along      product                              gradient of the input
//   its outputs      to_ranks(x) W_r: split, as is bias   summed over ranks (by to_ranks)
//   its inputs       sum over ranks of x_r W_r, + bias    split, as is x_r
//
// (Megatron-LM, arXiv:1909.08053, section 3, for any program instead of modules written for it.) The rule
// lies above autograd and autocast. It takes `linear` and `matmul` whole; other operators that only call
// others come as what they call. Operators without a meaning here are errors that name operator and
// parameter. In backward, autograd computes with local views (zero/buckets.h), which no rule sees; a backward
// that the program writes itself comes here, and is right by the same rule.
//
// Owned by the engine, and by copies of split parameters. Any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tensor_parallel/rank_sums.h"
#include "zero/buckets.h"

namespace zerorun {

/// A tensor that is a part of a split parameter, or a view, cast or copy of one.
struct SplitTensor {
  at::Tensor tensor;
  const std::string* name;  // of the parameter; lives as long as the storage
  std::shared_ptr<const Split> split;
  int64_t dim;  // the dimension of `tensor` that is split

  /// Counted from the last dimension: -1, -2, ...
  int64_t dim_from_end() const { return dim - tensor.dim(); }
  /// The part as a plain tensor: operators on it do not come to the rule. Autograd records it.
  at::Tensor local() const;
};

class TensorRule final : public OperatorRule, public std::enable_shared_from_this<TensorRule> {
 public:
  /// `buckets` must outlive the operators on its parameters.
  TensorRule(const Mesh& mesh, const Buckets& buckets);

  void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

  const TensorGroupPtr& group() const { return group_; }
  /// Nothing if the tensor is not split. Throws UserError if it is a view whose split dimension is unclear.
  std::optional<SplitTensor> find(const at::Tensor& tensor);
  at::Tensor local_view(const at::Tensor& tensor) const;
  /// Marks `plain`, which has the same sizes, as a copy of `original` that is split likewise. Autograd
  /// records it.
  at::Tensor marked_copy(const at::Tensor& plain, const SplitTensor& original);

 private:
  const Buckets* buckets_;
  TensorGroupPtr group_;
};

/// Runs one operator of a rule. `stack` has its arguments, which are replaced by its results.
class SplitOperator {
 public:
  SplitOperator(TensorRule& rule, const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void run();

 private:
  using Method = void (SplitOperator::*)();
  static Method method_of(const std::string& name);

  void linear();
  void product();
  void addmm();
  void embedding();
  void add_bias();
  void copy();
  void slice();
  bool is_known_form() const;
  void write_in_place();

  at::Tensor argument(size_t index) const;
  std::optional<SplitTensor> split_argument(size_t index) const { return rule_.find(argument(index)); }
  at::Tensor multiply(const at::Tensor& left, const at::Tensor& right);
  at::Tensor enter(const at::Tensor& whole, const SplitTensor& weight);
  at::Tensor sum(const at::Tensor& summand, const SplitTensor& weight);
  at::Tensor leave(const at::Tensor& result, const SplitTensor& weight);
  void give(at::Tensor result);
  [[noreturn]] void refuse(const SplitTensor& split, const std::string& reason) const;

  TensorRule& rule_;
  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
};

}  // namespace zerorun
