#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>

#include <limits>
#include <utility>

#include "comm/zeroed_memory.h"
#include "optim/shard_optimizer.h"

namespace zerorun {
namespace {

struct ShardState {
  at::Tensor exp_avg;     // Adam
  at::Tensor exp_avg_sq;  // Adam
  at::Tensor momentum;    // SGD with momentum
};

class FusedOptimizer : public ShardOptimizer {
 public:
  FusedOptimizer(std::vector<OptimizerConfig> groups, std::vector<Shard> shards)
      : groups_(std::move(groups)), shards_(std::move(shards)) {
    for (const Shard& shard : shards_) {
      const OptimizerConfig& group = groups_[shard.group];
      ShardState state;
      if (group.type != OptimizerType::sgd) {
        state.exp_avg = zeroed_memory(shard.values.numel(), at::kFloat);
        state.exp_avg_sq = zeroed_memory(shard.values.numel(), at::kFloat);
      } else if (group.momentum != 0) {
        state.momentum = zeroed_memory(shard.values.numel(), at::kFloat);
      }
      states_.push_back(std::move(state));
    }
  }

  void step(double gradient_divisor, const std::function<void(int)>& updated) override {
    ++steps_;
    const at::Tensor divisor = at::full({}, gradient_divisor, at::kFloat);
    // Without bias correction the kernels are told of infinitely many steps: 1 - beta^inf = 1.
    const at::Tensor count = at::full({}, static_cast<double>(steps_), at::kFloat);
    const at::Tensor endless = at::full({}, std::numeric_limits<double>::infinity(), at::kFloat);
    for (size_t index = 0; index < shards_.size(); ++index) {
      const OptimizerConfig& group = groups_[shards_[index].group];
      update(shards_[index], states_[index], group, group.bias_correction ? count : endless, divisor);
      updated(static_cast<int>(index));
    }
  }

  double lr(int group) const override { return groups_[group].lr; }
  void set_lr(int group, double lr) override { groups_[group].lr = lr; }
  int groups() const override { return static_cast<int>(groups_.size()); }

  int64_t state_bytes() const override {
    size_t total = 0;
    for (const ShardState& state : states_) {
      for (const at::Tensor* tensor : {&state.exp_avg, &state.exp_avg_sq, &state.momentum}) {
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
  void update(const Shard& shard, const ShardState& state, const OptimizerConfig& group,
              const at::Tensor& count, const at::Tensor& divisor) const {
    if (group.type == OptimizerType::sgd) {
      at::TensorList momentum = state.momentum.defined() ? at::TensorList(state.momentum) : at::TensorList();
      at::_fused_sgd_(shard.values, shard.gradient, momentum, group.weight_decay, group.momentum, group.lr,
                      group.dampening, group.nesterov, /*maximize=*/false, /*is_first_step=*/steps_ == 1,
                      divisor);
      return;
    }
    using FusedAdam = void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                               at::TensorList, double, double, double, double, double, bool, bool,
                               const std::optional<at::Tensor>&, const std::optional<at::Tensor>&);
    const FusedAdam fused = group.type == OptimizerType::adam_w ? static_cast<FusedAdam>(&at::_fused_adamw_)
                                                                : static_cast<FusedAdam>(&at::_fused_adam_);
    fused(shard.values, shard.gradient, state.exp_avg, state.exp_avg_sq, {}, count, group.lr, group.beta1,
          group.beta2, group.weight_decay, group.eps, /*amsgrad=*/false, /*maximize=*/false, divisor,
          std::nullopt);
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
