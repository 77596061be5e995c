#include <ATen/core/Tensor.h>

#include <array>
#include <utility>

#include "optim/hyperparameters.h"
#include "optim/shard_optimizer.h"
#include "optim/update_rule_of.h"

namespace zerorun {
namespace {

class FusedOptimizer : public ShardOptimizer {
 public:
  FusedOptimizer(std::vector<OptimizerConfig> groups, std::vector<Shard> shards, const BorrowMoment& borrow,
                 Device& device)
      : groups_(std::move(groups)), shards_(std::move(shards)), device_(&device) {
    for (const Shard& shard : shards_) {
      Moments& moments = moments_.emplace_back();
      if (std::holds_alternative<MuonConfig>(groups_[shard.group])) continue;  // its rule has none
      size_t count = 0;
      for (const char* name : moments_of(groups_[shard.group])) moments[count++] = borrow(shard, name);
      if (const auto* adagrad = std::get_if<AdagradConfig>(&groups_[shard.group])) {
        moments[0].fill_(adagrad->initial_accumulator_value);
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

  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override { steps_ = steps; }

  double lr(int group) const override { return lr_of(groups_[group]); }
  void set_lr(int group, double lr) override { zerorun::set_lr(groups_[group], lr); }
  std::optional<std::pair<double, double>> betas(int group) const override {
    return betas_of(groups_[group]);
  }
  void set_betas(int group, std::pair<double, double> betas) override {
    zerorun::set_betas(groups_[group], betas);
  }
  int groups() const override { return static_cast<int>(groups_.size()); }

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
                                                     std::vector<Shard> shards, const BorrowMoment& borrow,
                                                     Device& device) {
  return std::make_unique<FusedOptimizer>(std::move(groups), std::move(shards), borrow, device);
}

}  // namespace zerorun
