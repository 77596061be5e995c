#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "optim/shard_optimizer.h"
#include "optim/update_rule_of.h"

namespace zerorun {
namespace {

class FusedOptimizer : public ShardOptimizer {
 public:
  FusedOptimizer(std::vector<OptimizerConfig> groups, std::vector<Shard> shards, Device& device)
      : groups_(std::move(groups)), shards_(std::move(shards)), device_(&device) {
    for (const Shard& shard : shards_) {
      const OptimizerConfig& group = groups_[shard.group];
      Moments& moments = moments_.emplace_back();
      for (int i = 0; i < moments_of(group); ++i) {
        moments[i] = device.allocate(shard.values.numel(), at::kFloat);
      }
      if (group.type == OptimizerType::adagrad && group.initial_accumulator_value != 0) {
        moments[0].fill_(group.initial_accumulator_value);
      }
    }
  }

  void step(const at::Tensor& facts, const std::function<void(int)>& updated) override {
    ++steps_;
    for (size_t index = 0; index < shards_.size(); ++index) {
      const Shard& shard = shards_[index];
      const Moments& moments = moments_[index];
      device_->update(update_rule_of(groups_[shard.group], steps_),
                      {.gradient = shard.gradient,
                       .values = shard.values,
                       .first = moments[0],
                       .second = moments[1],
                       .third = moments[2],
                       .rounded = shard.rounded},
                      facts);
      updated(static_cast<int>(index));
    }
  }

  void take_back_step() override { --steps_; }

  double lr(int group) const override { return groups_[group].lr; }
  void set_lr(int group, double lr) override { groups_[group].lr = lr; }
  std::optional<std::pair<double, double>> betas(int group) const override {
    if (!has_betas(groups_[group].type)) return std::nullopt;
    return std::pair(groups_[group].beta1, groups_[group].beta2);
  }
  void set_betas(int group, std::pair<double, double> betas) override {
    ZR_CHECK(has_betas(groups_[group].type), "betas for an optimizer that has none");
    std::tie(groups_[group].beta1, groups_[group].beta2) = betas;
  }
  int groups() const override { return static_cast<int>(groups_.size()); }

  int64_t state_bytes() const override {
    size_t total = 0;
    for (const Moments& moments : moments_) {
      for (const at::Tensor& tensor : moments) {
        if (tensor.defined()) total += tensor.nbytes();
      }
    }
    return static_cast<int64_t>(total);
  }

  int moment_bytes(int group) const override {
    return moments_of(groups_[group]) * static_cast<int>(sizeof(float));
  }

 private:
  using Moments = std::array<at::Tensor, 3>;  // undefined behind as many as the rule has

  std::vector<OptimizerConfig> groups_;
  std::vector<Shard> shards_;
  Device* device_;
  std::vector<Moments> moments_;
  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<ShardOptimizer> make_fused_optimizer(std::vector<OptimizerConfig> groups,
                                                     std::vector<Shard> shards, Device& device) {
  return std::make_unique<FusedOptimizer>(std::move(groups), std::move(shards), device);
}

}  // namespace zerorun
