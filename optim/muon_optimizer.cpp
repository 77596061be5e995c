// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) for matrices, AdamW for the rest, as
// DeepSpeed runs the two: a matrix's gradient goes through momentum and is made nearly orthogonal before the
// norm of everything is taken, so that clipping and the reported norm are about what is applied.
//
// Ranks own slices of matrices. Momentum is kept for slices; then the directions of a bucket are
// all-gathered, and each rank works out the matrices that its slice has a part of. While one bucket is worked
// on, the next is gathered.
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "optim/newton_schulz.h"
#include "optim/whole_parameter_optimizers.h"

namespace zerorun {
namespace {

bool is_muon(const OptimizerConfig& group) {
  return std::holds_alternative<MuonConfig>(group);
}

class MuonOptimizer : public ShardOptimizer {
 public:
  MuonOptimizer(std::vector<OptimizerConfig> groups, std::vector<Shard> shards, const BorrowMoment& borrow,
                const Buckets& buckets, Communicator& communicator)
      : groups_(std::move(groups)),
        momenta_(shards.size()),
        shards_(std::move(shards)),
        buckets_(&buckets),
        shards_of_(buckets.trained_count()),
        communicator_(&communicator),
        device_(&communicator.device()),
        facts_(device_->allocate(kFactsNumel, at::kDouble)) {
    int64_t widest = 0;
    for (size_t index = 0; index < shards_.size(); ++index) {
      Shard& shard = shards_[index];
      gradients_.push_back(shard.gradient);
      const int64_t numel = shard.values.numel();
      if (shard.gradient.scalar_type() != at::kFloat) shard.gradient = device_->allocate(numel, at::kFloat);
      directions_.push_back(shard.gradient);
      shards_of_[shard.bucket].push_back(static_cast<int>(index));
      if (!is_muon(groups_[shard.group])) continue;
      momenta_[index] = borrow(shard, "momentum_buffer");
      widest = std::max(widest, buckets.layout(shard.bucket).numel);
    }
    for (at::Tensor& gathered : gathered_) gathered = communicator.allocate(widest, at::kFloat);
    for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
      if (is_muon(groups_[buckets.layout(bucket).group])) muon_buckets_.push_back(bucket);
    }
    update_ = make_fused_optimizer(groups_, shards_, borrow, *device_);
  }

  // Momentum takes in no gradient that is not to be applied.
  bool reads_facts() const override { return true; }
  bool has_directions() const override { return true; }

  std::span<const at::Tensor> make_directions(double divisor) override {
    c10::NoGradGuard no_grad;
    const auto factor = static_cast<float>(1 / divisor);
    for (size_t index = 0; index < shards_.size(); ++index) {
      device_->copy_scaled(directions_[index], gradients_[index], factor);
      if (momenta_[index].defined()) add_momentum(static_cast<int>(index));
    }
    std::unique_ptr<Work> work;
    for (size_t position = 0; position < muon_buckets_.size(); ++position) {
      if (position == 0) work = start_gather(position);
      if (work) work->wait();
      if (position + 1 < muon_buckets_.size()) work = start_gather(position + 1);
      orthogonalize(position);
    }
    return directions_;
  }

  void step(const at::Tensor& facts, const std::function<void(int)>& updated) override {
    device_->copy(facts_, facts);
    update_->step(facts_, updated);
  }

  int64_t steps() const override { return update_->steps(); }
  void set_steps(int64_t steps) override { update_->set_steps(steps); }

  double lr(int group) const override { return update_->lr(group); }
  void set_lr(int group, double lr) override { update_->set_lr(group, lr); }
  std::optional<std::pair<double, double>> betas(int group) const override { return update_->betas(group); }
  void set_betas(int group, std::pair<double, double> betas) override { update_->set_betas(group, betas); }
  int groups() const override { return update_->groups(); }

  int64_t buffer_bytes() const override {
    size_t total = gathered_[0].nbytes() + gathered_[1].nbytes();
    for (size_t index = 0; index < shards_.size(); ++index) {
      if (!gradients_[index].is_same(directions_[index])) total += directions_[index].nbytes();
    }
    return static_cast<int64_t>(total);
  }

 private:
  // Nesterov's: the gradient becomes what the momentum will be if the next one is the same.
  void add_momentum(int index) {
    const double beta = std::get<MuonConfig>(groups_[shards_[index].group]).momentum;
    momenta_[index].lerp_(directions_[index], 1 - beta);
    directions_[index].lerp_(momenta_[index], beta);
  }

  at::Tensor whole(size_t position) {
    return gathered_[position % 2].narrow(0, 0, buckets_->layout(muon_buckets_[position]).numel);
  }

  // Null where this rank updates all slices and so has them.
  std::unique_ptr<Work> start_gather(size_t position) {
    const int bucket = muon_buckets_[position];
    const at::Tensor gathered = whole(position);
    const auto& among = shards_of_[bucket];
    if (among.size() == 1) {
      return communicator_->all_gather(gathered, directions_[among.front()],
                                       "Muon's directions of " + buckets_->label(bucket));
    }
    for (int shard : among) {
      device_->copy(buckets_->slice(bucket, gathered, shards_[shard].rank), directions_[shard]);
    }
    return nullptr;
  }

  void orthogonalize(size_t position) {
    const int bucket = muon_buckets_[position];
    const at::Tensor gathered = whole(position);
    const auto& among = shards_of_[bucket];
    const auto& group = std::get<MuonConfig>(groups_[buckets_->layout(bucket).group]);
    for (int parameter : buckets_->layout(bucket).parameters) {
      const bool needed = std::ranges::any_of(among, [&](int shard) {
        return buckets_->range_in_slice(parameter, shards_[shard].rank).numel > 0;
      });
      if (!needed) continue;
      at::Tensor matrix = buckets_->view(parameter, gathered);
      matrix.copy_(direction_of(matrix, group.newton_schulz));
    }
    for (int shard : among) {
      device_->copy(directions_[shard], buckets_->slice(bucket, gathered, shards_[shard].rank));
    }
  }

  // Convolutions' weights are matrices with a row for each output channel.
  static at::Tensor direction_of(const at::Tensor& matrix, NewtonSchulz method) {
    const at::Tensor flat = matrix.dim() == 4 ? matrix.flatten(1) : matrix;
    const double rows = static_cast<double>(matrix.size(-2));
    const double columns = static_cast<double>(matrix.size(-1));
    const double scale = std::sqrt(std::max(1.0, rows / columns));
    return (orthogonalized(flat, method) * scale).view(matrix.sizes());
  }

  std::vector<OptimizerConfig> groups_;
  std::vector<at::Tensor> gradients_;   // by shard, as they come
  std::vector<at::Tensor> directions_;  // float32; where gradients are, they are the same tensors
  std::vector<at::Tensor> momenta_;     // undefined where AdamW updates
  std::vector<Shard> shards_;           // whose gradients are the directions
  const Buckets* buckets_;
  std::vector<std::vector<int>> shards_of_;  // by bucket
  std::vector<int> muon_buckets_;
  Communicator* communicator_;
  Device* device_;
  at::Tensor facts_;                    // in the device's memory
  std::array<at::Tensor, 2> gathered_;  // whole buckets, taking turns
  std::unique_ptr<ShardOptimizer> update_;
};

}  // namespace

std::unique_ptr<ShardOptimizer> make_muon_optimizer(std::vector<OptimizerConfig> groups,
                                                    std::vector<Shard> shards, const BorrowMoment& borrow,
                                                    const Buckets& buckets, Communicator& communicator) {
  return std::make_unique<MuonOptimizer>(std::move(groups), std::move(shards), borrow, buckets, communicator);
}

std::vector<OptimizerConfig> split_for_muon(const std::vector<OptimizerConfig>& groups) {
  std::vector<OptimizerConfig> split;
  for (const OptimizerConfig& group : groups) {
    split.push_back(group);
    split.emplace_back(std::get<MuonConfig>(group).others);
  }
  return split;
}

int group_for_muon(int group, const std::string& name, int64_t dimensions) {
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool by_muon = dimensions >= 2 && lower.find("embed") == std::string::npos &&
                       lower.find("lm_head") == std::string::npos;
  return 2 * group + (by_muon ? 0 : 1);
}

}  // namespace zerorun
