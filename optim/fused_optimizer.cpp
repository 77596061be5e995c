#include <ATen/TensorIterator.h>

#include <cmath>
#include <utility>

#include "comm/dtypes.h"
#include "comm/zeroed_memory.h"
#include "optim/shard_optimizer.h"
#include "optim/update_kernels.h"

namespace zerorun {
namespace {

// Fewer elements than this are not worth a second thread.
constexpr int64_t kGrain = 32768;

// Calls body(begin, length) for the slices of `values` that LibTorch's intra-op threads share among them.
// This is at::parallel_for() of LibTorch's own making: instantiated here it would need this file to be
// compiled for, and linked to, the same OpenMP runtime.
template <typename Body>
void for_slices_in_parallel(const at::Tensor& values, const Body& body) {
  const char* start = static_cast<const char*>(values.const_data_ptr());
  at::TensorBase whole = values;
  at::TensorIterator::nullary_op(whole).for_each(
      [&](char** data, const int64_t*, int64_t inner, int64_t outer) {
        body((data[0] - start) / static_cast<int64_t>(sizeof(float)), inner * outer);
      },
      kGrain);
}

struct ShardState {
  at::Tensor first;   // Adam's exp_avg; the momentum buffer of SGD with momentum
  at::Tensor second;  // Adam's exp_avg_sq
};

class FusedOptimizer : public ShardOptimizer {
 public:
  FusedOptimizer(std::vector<OptimizerConfig> groups, std::vector<Shard> shards)
      : groups_(std::move(groups)), shards_(std::move(shards)) {
    for (const Shard& shard : shards_) {
      const OptimizerConfig& group = groups_[shard.group];
      const bool adam = group.type != OptimizerType::sgd;
      ShardState state;
      if (adam || group.momentum != 0) state.first = zeroed_memory(shard.values.numel(), at::kFloat);
      if (adam) state.second = zeroed_memory(shard.values.numel(), at::kFloat);
      states_.push_back(std::move(state));
    }
  }

  void step(double gradient_divisor, const std::function<void(int)>& updated) override {
    ++steps_;
    for (size_t index = 0; index < shards_.size(); ++index) {
      const OptimizerConfig& group = groups_[shards_[index].group];
      const UpdateSpan span = span_of(shards_[index], states_[index]);
      const at::Tensor& values = shards_[index].values;
      if (group.type == OptimizerType::sgd) {
        update_all(sgd_update(group, 1 / gradient_divisor), span, values);
      } else {
        update_all(adam_update(group, 1 / gradient_divisor), span, values);
      }
      updated(static_cast<int>(index));
    }
  }

  double lr(int group) const override { return groups_[group].lr; }
  void set_lr(int group, double lr) override { groups_[group].lr = lr; }
  int groups() const override { return static_cast<int>(groups_.size()); }

  int64_t state_bytes() const override {
    size_t total = 0;
    for (const ShardState& state : states_) {
      for (const at::Tensor* tensor : {&state.first, &state.second}) {
        if (tensor->defined()) total += tensor->nbytes();
      }
    }
    return static_cast<int64_t>(total);
  }

  int moment_bytes() const override {
    const OptimizerConfig& group = groups_.front();
    if (group.type != OptimizerType::sgd) return 8;
    return group.momentum != 0 ? 4 : 0;
  }

 private:
  static UpdateSpan span_of(const Shard& shard, const ShardState& state) {
    auto floats = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
    };
    return {.numel = shard.values.numel(),
            .gradient = shard.gradient.const_data_ptr(),
            .gradient_dtype = dtype_of(shard.gradient),
            .values = floats(shard.values),
            .first = floats(state.first),
            .second = floats(state.second),
            .rounded = shard.rounded.defined() ? shard.rounded.mutable_data_ptr() : nullptr,
            .rounded_dtype = shard.rounded.defined() ? dtype_of(shard.rounded) : Dtype::bf16};
  }

  template <typename Rule>
  static void update_all(const Rule& rule, const UpdateSpan& span, const at::Tensor& values) {
    for_slices_in_parallel(values,
                           [&](int64_t begin, int64_t length) { update(rule, span.slice(begin, length)); });
  }

  // Worked out in float64 and rounded once.
  AdamUpdate adam_update(const OptimizerConfig& group, double gradient_factor) const {
    const auto steps = static_cast<double>(steps_);
    const double correction1 = group.bias_correction ? 1 - std::pow(group.beta1, steps) : 1;
    const double correction2 = group.bias_correction ? 1 - std::pow(group.beta2, steps) : 1;
    const bool decoupled = group.type == OptimizerType::adam_w;
    return {.gradient_factor = static_cast<float>(gradient_factor),
            .beta1 = static_cast<float>(group.beta1),
            .new_in_first = static_cast<float>(1 - group.beta1),
            .beta2 = static_cast<float>(group.beta2),
            .new_in_second = static_cast<float>(1 - group.beta2),
            .step_size = static_cast<float>(group.lr / correction1),
            .root_factor = static_cast<float>(1 / std::sqrt(correction2)),
            .eps = static_cast<float>(group.eps),
            .gradient_decay = static_cast<float>(decoupled ? 0 : group.weight_decay),
            .value_decay = static_cast<float>(decoupled ? group.lr * group.weight_decay : 0)};
  }

  SgdUpdate sgd_update(const OptimizerConfig& group, double gradient_factor) const {
    return {.gradient_factor = static_cast<float>(gradient_factor),
            .lr = static_cast<float>(group.lr),
            .gradient_decay = static_cast<float>(group.weight_decay),
            .momentum = static_cast<float>(group.momentum),
            .new_in_first = static_cast<float>(steps_ == 1 ? 1 : 1 - group.dampening),
            .nesterov = group.nesterov};
  }

  std::vector<OptimizerConfig> groups_;
  std::vector<Shard> shards_;
  std::vector<ShardState> states_;
  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<ShardOptimizer> make_fused_optimizer(std::vector<OptimizerConfig> groups,
                                                     std::vector<Shard> shards) {
  return std::make_unique<FusedOptimizer>(std::move(groups), std::move(shards));
}

}  // namespace zerorun
