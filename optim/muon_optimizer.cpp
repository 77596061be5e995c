// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) for matrices, AdamW for other
// parameters. As in DeepSpeed, momentum and orthogonalization are applied to a matrix's gradient before the
// global norm is computed, so clipping and the reported norm refer to the resulting directions.
//
// Ranks own slices of matrices. Each rank keeps the momentum of its slices; then a bucket's directions are
// all-gathered, and each rank orthogonalizes the matrices that overlap its slice. Meanwhile the directions of
// the next bucket are all-gathered, on the stream of gathers.
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "device/step_facts.h"
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
                const SliceStore& store, const Buckets& buckets, Communicator& communicator,
                StateAccess& access, std::vector<int64_t> head_rows)
      : groups_(std::move(groups)),
        momenta_(shards.size()),
        shards_(std::move(shards)),
        store_(&store),
        buckets_(&buckets),
        slices_of_(buckets.trained_count()),
        own_directions_(buckets.trained_count()),
        communicator_(&communicator),
        device_(&communicator.device()),
        streams_(&communicator.device().streams()),
        access_(&access),
        head_rows_(std::move(head_rows)),
        facts_(device_->allocate(kFactsNumel, at::kDouble)) {
    int64_t widest = 0;
    for (size_t index = 0; index < shards_.size(); ++index) {
      const Shard& shard = shards_[index];
      if (shard.begin == 0) add_slice(shard);
      const Slice& slice = slices_.back();
      shards_[index].gradient = slice.direction.narrow(0, shard.begin, shard.values.numel());
      if (!is_muon(groups_[shard.group])) continue;
      with_momentum_.push_back(static_cast<int>(index));
      momenta_[index] = borrow(shard, "momentum_buffer").values;
      widest = std::max(widest, store.layout(shard.bucket).numel);
    }
    for (Gathered& gathered : gathered_) gathered.memory = communicator.allocate(widest, at::kFloat);
    for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
      if (is_muon(groups_[store.layout(bucket).group])) muon_buckets_.push_back(bucket);
    }
    update_ = make_fused_optimizer(groups_, shards_, borrow, *device_, access);
  }

  // The host must know whether to step, since momentum must not absorb the gradients of a skipped step.
  bool reads_facts() const override { return true; }
  bool has_directions() const override { return true; }

  std::span<const at::Tensor> make_directions(double divisor) override {
    c10::NoGradGuard no_grad;
    const auto factor = static_cast<float>(1 / divisor);
    for (const Slice& slice : slices_) device_->copy_scaled(slice.direction, slice.gradient, factor);
    access_->plan(with_momentum_);
    for (const int index : with_momentum_) {
      access_->open(index, ShardUse::moments);
      add_momentum(index);
      access_->close(index, ShardUse::moments);
    }
    streams_->record(directions_made_, streams_->current());
    if (!muon_buckets_.empty()) start_gather(0);
    for (size_t position = 0; position < muon_buckets_.size(); ++position) {
      Gathered& gathered = gathered_[position % 2];
      if (gathered.work) std::exchange(gathered.work, nullptr)->wait();
      streams_->wait(gathered.arrived, streams_->current(), Handover::gathered);
      if (position + 1 < muon_buckets_.size()) start_gather(position + 1);
      orthogonalize(position);
      streams_->record(gathered.used, streams_->current());
    }
    return own_directions_;
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
  void set_weight_decay(int group, double weight_decay) override {
    update_->set_weight_decay(group, weight_decay);
  }
  int groups() const override { return update_->groups(); }

  int64_t buffer_bytes() const override {
    size_t total = gathered_[0].memory.nbytes() + gathered_[1].memory.nbytes();
    for (const Slice& slice : slices_) {
      if (!slice.gradient.is_same(slice.direction)) total += slice.direction.nbytes();
    }
    return static_cast<int64_t>(total);
  }

 private:
  // A slice of a bucket. It consists of one or more shards.
  struct Slice {
    int rank;
    at::Tensor gradient;   // in the dtype of the shards' gradients
    at::Tensor direction;  // float32; the same tensor as `gradient` if that is float32
  };

  // A buffer for a whole bucket's directions.
  struct Gathered {
    at::Tensor memory;
    std::unique_ptr<Work> work;  // the all-gather into it, until the host has waited for it
    Event arrived;
    Event used;  // recorded after the last use of what arrived
  };

  // `first`: the slice's first shard.
  void add_slice(const Shard& first) {
    const int64_t numel = store_->layout(first.bucket).slice_numel;
    const at::Tensor gradient = first.gradient.as_strided({numel}, {1});
    const bool is_wide = gradient.scalar_type() == at::kFloat;
    slices_of_[first.bucket].push_back(static_cast<int>(slices_.size()));
    slices_.push_back({.rank = first.rank,
                       .gradient = gradient,
                       .direction = is_wide ? gradient : device_->allocate(numel, at::kFloat)});
    if (first.rank == communicator_->rank()) own_directions_[first.bucket] = slices_.back().direction;
  }

  // Nesterov momentum: the direction is the momentum that would follow if the next gradient were the same.
  void add_momentum(int index) {
    const double beta = std::get<MuonConfig>(groups_[shards_[index].group]).momentum;
    const at::Tensor& direction = shards_[index].gradient;
    momenta_[index].lerp_(direction, 1 - beta);
    direction.lerp_(momenta_[index], beta);
  }

  at::Tensor whole(size_t position) {
    return gathered_[position % 2].memory.narrow(0, 0, store_->layout(muon_buckets_[position]).numel);
  }

  // Starts the all-gather of a bucket's directions. At stage 0 this rank updates all slices and already has
  // all directions, so this copies them.
  void start_gather(size_t position) {
    const int bucket = muon_buckets_[position];
    const auto& among = slices_of_[bucket];
    Gathered& gathered = gathered_[position % 2];
    const StreamScope scope(*streams_, Lane::gather);
    streams_->wait(directions_made_, streams_->current(), Handover::updated);
    streams_->wait(gathered.used, streams_->current(), Handover::released);
    if (among.size() == 1) {
      gathered.work = communicator_->all_gather(whole(position), slices_[among.front()].direction,
                                                "Muon's directions of " + buckets_->label(bucket));
    } else {
      for (int slice : among)
        device_->copy(store_->slice_of(bucket, whole(position), slices_[slice].rank),
                      slices_[slice].direction);
    }
    streams_->record(gathered.arrived, streams_->current());
  }

  void orthogonalize(size_t position) {
    const int bucket = muon_buckets_[position];
    const at::Tensor gathered = whole(position);
    const auto& among = slices_of_[bucket];
    const auto& group = std::get<MuonConfig>(groups_[store_->layout(bucket).group]);
    for (int parameter : store_->layout(bucket).parameters) {
      const bool needed = std::ranges::any_of(
          among, [&](int slice) { return store_->range_in_slice(parameter, slices_[slice].rank).numel > 0; });
      if (!needed) continue;
      at::Tensor matrix = buckets_->view(parameter, gathered);
      matrix.copy_(direction_of(matrix, head_rows_[parameter], group.newton_schulz));
    }
    for (int slice : among) {
      device_->copy(slices_[slice].direction, store_->slice_of(bucket, gathered, slices_[slice].rank));
    }
  }

  // Orthogonalizes a convolution's weight as a matrix with a row for each output channel, and heads of
  // attention one by one. The scale depends on the last two dimensions of the weight or of a head, as in
  // DeepSpeed (original_muon.py).
  static at::Tensor direction_of(const at::Tensor& matrix, int64_t head_rows, NewtonSchulz method) {
    const at::Tensor flat = matrix.dim() == 4 ? matrix.flatten(1)
                            : head_rows > 0   ? matrix.unflatten(0, {matrix.size(0) / head_rows, head_rows})
                                              : matrix;
    const double rows = static_cast<double>(head_rows > 0 ? head_rows : matrix.size(-2));
    const double columns = static_cast<double>(matrix.size(-1));
    const double scale = std::sqrt(std::max(1.0, rows / columns));
    return (orthogonalized(flat, method) * scale).reshape(matrix.sizes());
  }

  std::vector<OptimizerConfig> groups_;
  std::vector<at::Tensor> momenta_;  // by shard; undefined if AdamW updates the shard
  std::vector<int> with_momentum_;   // the shards that Muon updates
  std::vector<Shard> shards_;        // Shard::gradient is here the shard's direction
  const SliceStore* store_;
  const Buckets* buckets_;
  std::vector<Slice> slices_;
  std::vector<std::vector<int>> slices_of_;  // by bucket
  std::vector<at::Tensor> own_directions_;   // by bucket: the directions of this rank's slice
  std::vector<int> muon_buckets_;
  Communicator* communicator_;
  Device* device_;
  Streams* streams_;
  StateAccess* access_;
  std::vector<int64_t> head_rows_;    // by parameter; 0: not divided into heads
  at::Tensor facts_;                  // the step's facts, in device memory
  Event directions_made_;             // recorded when the slices have their directions, not orthogonal yet
  std::array<Gathered, 2> gathered_;  // used alternately
  std::unique_ptr<ShardOptimizer> update_;
};

}  // namespace

std::unique_ptr<ShardOptimizer> make_muon_optimizer(std::vector<OptimizerConfig> groups,
                                                    std::vector<Shard> shards, const BorrowMoment& borrow,
                                                    const SliceStore& store, const Buckets& buckets,
                                                    Communicator& communicator, StateAccess& access,
                                                    std::vector<int64_t> head_rows) {
  return std::make_unique<MuonOptimizer>(std::move(groups), std::move(shards), borrow, store, buckets,
                                         communicator, access, std::move(head_rows));
}

std::vector<OptimizerConfig> split_for_muon(const std::vector<OptimizerConfig>& groups) {
  std::vector<OptimizerConfig> split;
  for (const OptimizerConfig& group : groups) {
    split.push_back(group);
    split.emplace_back(std::get<MuonConfig>(group).adamw);
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
