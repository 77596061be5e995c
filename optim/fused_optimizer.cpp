#include <cmath>
#include <utility>

#include "optim/shard_optimizer.h"

namespace zerorun {
namespace {

struct ShardState {
  at::Tensor first;   // Adam's exp_avg; the momentum buffer of SGD with momentum
  at::Tensor second;  // Adam's exp_avg_sq
};

class FusedOptimizer : public ShardOptimizer {
 public:
  FusedOptimizer(std::vector<OptimizerConfig> groups, std::vector<Shard> shards, Device& device)
      : groups_(std::move(groups)), shards_(std::move(shards)), device_(&device) {
    for (const Shard& shard : shards_) {
      const OptimizerConfig& group = groups_[shard.group];
      const bool adam = group.type != OptimizerType::sgd;
      ShardState state;
      if (adam || group.momentum != 0) state.first = device.allocate(shard.values.numel(), at::kFloat);
      if (adam) state.second = device.allocate(shard.values.numel(), at::kFloat);
      states_.push_back(std::move(state));
    }
  }

  void step(const at::Tensor& facts, const std::function<void(int)>& updated) override {
    ++steps_;
    for (size_t index = 0; index < shards_.size(); ++index) {
      const Shard& shard = shards_[index];
      const ShardState& state = states_[index];
      device_->update(rule_of(groups_[shard.group]),
                      {.gradient = shard.gradient,
                       .values = shard.values,
                       .first = state.first,
                       .second = state.second,
                       .rounded = shard.rounded},
                      facts);
      updated(static_cast<int>(index));
    }
  }

  void take_back_step() override { --steps_; }

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
  // Worked out in float64 and rounded once.
  UpdateRule rule_of(const OptimizerConfig& group) const {
    if (group.type != OptimizerType::sgd) return adam_update(group);
    const auto lr = static_cast<float>(group.lr);
    const auto decay = static_cast<float>(group.weight_decay);
    if (group.momentum == 0) return SgdUpdate{.lr = lr, .gradient_decay = decay};
    const auto momentum = static_cast<float>(group.momentum);
    return MomentumUpdate{.lr = lr,
                          .gradient_decay = decay,
                          .momentum = momentum,
                          .new_in_first = static_cast<float>(steps_ == 1 ? 1 : 1 - group.dampening),
                          .of_gradient = group.nesterov ? 1.0F : 0.0F,
                          .of_first = group.nesterov ? momentum : 1.0F};
  }

  AdamUpdate adam_update(const OptimizerConfig& group) const {
    const auto steps = static_cast<double>(steps_);
    const double correction1 = group.bias_correction ? 1 - std::pow(group.beta1, steps) : 1;
    const double correction2 = group.bias_correction ? 1 - std::pow(group.beta2, steps) : 1;
    const bool decoupled = group.type == OptimizerType::adam_w;
    return {.beta1 = static_cast<float>(group.beta1),
            .new_in_first = static_cast<float>(1 - group.beta1),
            .beta2 = static_cast<float>(group.beta2),
            .new_in_second = static_cast<float>(1 - group.beta2),
            .step_size = static_cast<float>(group.lr / correction1),
            .root_factor = static_cast<float>(1 / std::sqrt(correction2)),
            .eps = static_cast<float>(group.eps),
            .gradient_decay = static_cast<float>(decoupled ? 0 : group.weight_decay),
            .value_decay = static_cast<float>(decoupled ? group.lr * group.weight_decay : 0)};
  }

  std::vector<OptimizerConfig> groups_;
  std::vector<Shard> shards_;
  Device* device_;
  std::vector<ShardState> states_;
  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<ShardOptimizer> make_fused_optimizer(std::vector<OptimizerConfig> groups,
                                                     std::vector<Shard> shards, Device& device) {
  return std::make_unique<FusedOptimizer>(std::move(groups), std::move(shards), device);
}

}  // namespace zerorun
