#include <ATen/core/Tensor.h>

#include <array>
#include <utility>

#include "base/timeline.h"
#include "device/moment_codes.h"
#include "device/tensor_run.h"
#include "optim/hyperparameters.h"
#include "optim/shard_optimizer.h"
#include "optim/update_rule_of.h"

namespace zerorun {
namespace {

using Moments = std::array<MomentMemory, 3>;  // undefined beyond the rule's moments

class FusedOptimizer : public ShardOptimizer {
 public:
  FusedOptimizer(std::vector<OptimizerConfig> groups, std::vector<Shard> shards, const BorrowMoment& borrow,
                 Device& device, StateAccess& access)
      : groups_(std::move(groups)), shards_(std::move(shards)), device_(&device), access_(&access) {
    for (int index = 0; index < static_cast<int>(shards_.size()); ++index) {
      const Shard& shard = shards_[index];
      forwards_.push_back(index);
      Moments moments;
      // Muon's rule uses no moments.
      if (!std::holds_alternative<MuonConfig>(groups_[shard.group])) {
        size_t count = 0;
        for (const char* name : moments_of(groups_[shard.group])) moments[count++] = borrow(shard, name);
      }
      if (const auto* adagrad = std::get_if<AdagradConfig>(&groups_[shard.group])) {
        access_->open(index, ShardUse::moments);
        moments[0].values.fill_(adagrad->initial_accumulator_value);
        access_->close(index, ShardUse::moments);
      }
      parts_.push_back(parts_of(shard, moments));
    }
    backwards_.assign(forwards_.rbegin(), forwards_.rend());
  }

  void step(const at::Tensor& facts, const std::function<void(int)>& updated) override {
    ++steps_;
    const std::vector<int>& order = access_->goes_backwards() ? backwards_ : forwards_;
    access_->plan(order);
    for (const int index : order) {
      const TimelineSpan span(TimelineName::update_shard, index);
      const Shard& shard = shards_[index];
      const UpdateRule rule = update_rule_of(groups_[shard.group], steps_);
      access_->open(index, ShardUse::update);
      for (size_t part = 0; part < parts_[index].size(); ++part) {
        UpdateTensors& tensors = parts_[index][part];
        if (tensors.rounding.is_on)
          tensors.rounding.key = mixed(shard.runs[part].key + static_cast<uint64_t>(steps_));
        device_->update(rule, tensors, facts);
      }
      access_->close(index, ShardUse::update);
      updated(index);
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
  void set_weight_decay(int group, double weight_decay) override {
    zerorun::set_weight_decay(groups_[group], weight_decay);
  }
  int groups() const override { return static_cast<int>(groups_.size()); }

 private:
  // The tensors of each call of the device: the whole shard, or each of its runs.
  static std::vector<UpdateTensors> parts_of(const Shard& shard, const Moments& moments) {
    const UpdateTensors whole{.gradient = shard.gradient,
                              .values = shard.values,
                              .first = moments[0].values,
                              .second = moments[1].values,
                              .third = moments[2].values,
                              .rounded = shard.rounded,
                              .first_scales = moments[0].scales,
                              .second_scales = moments[1].scales};
    if (shard.runs.empty()) return {whole};
    std::vector<UpdateTensors> parts;
    for (const RandomRun& run : shard.runs) {
      auto part = [&](const at::Tensor& all) {
        return all.defined() ? run_of(all, run.begin, run.numel) : at::Tensor();
      };
      auto blocks = [&](const at::Tensor& all) {
        return all.defined() ? run_of(all, run.begin / kCodedBlock, coded_blocks(run.numel)) : at::Tensor();
      };
      parts.push_back({.gradient = part(whole.gradient),
                       .values = part(whole.values),
                       .first = part(whole.first),
                       .second = part(whole.second),
                       .third = part(whole.third),
                       .rounded = part(whole.rounded),
                       .rounding = {.is_on = true, .key = 0, .first = run.first},
                       .first_scales = blocks(whole.first_scales),
                       .second_scales = blocks(whole.second_scales)});
    }
    return parts;
  }

  std::vector<OptimizerConfig> groups_;
  std::vector<Shard> shards_;
  Device* device_;
  StateAccess* access_;
  std::vector<int> forwards_, backwards_;          // all shards, in ascending and in descending order
  std::vector<std::vector<UpdateTensors>> parts_;  // by shard
  int64_t steps_ = 0;
};

}  // namespace

StateAccess& state_in_memory() {
  static StateAccess access;
  return access;
}

std::unique_ptr<ShardOptimizer> make_fused_optimizer(std::vector<OptimizerConfig> groups,
                                                     std::vector<Shard> shards, const BorrowMoment& borrow,
                                                     Device& device, StateAccess& access) {
  return std::make_unique<FusedOptimizer>(std::move(groups), std::move(shards), borrow, device, access);
}

}  // namespace zerorun
