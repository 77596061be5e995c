// Lamb (You et al. 2020, "Large Batch Optimization for Deep Learning", as DeepSpeed's fused_lamb computes
// it): the step of a parameter is scaled by the norm of its values over the norm of its direction. Ranks own
// slices of parameters, so both norms are all-reduced, bucket by bucket: the all-reduce of one bucket
// overlaps with computing the next bucket's directions.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

#include "device/step_facts.h"
#include "device/update_rules.h"
#include "optim/whole_parameter_optimizers.h"

namespace zerorun {
namespace {

constexpr int64_t kTallyDoubles = sizeof(Tally) / sizeof(double);

class LambOptimizer : public ShardOptimizer {
 public:
  LambOptimizer(const std::vector<OptimizerConfig>& groups, std::vector<Shard> shards,
                const BorrowMoment& borrow, const SliceStore& store, const Buckets& buckets,
                Communicator& communicator, Device& device, StateAccess& access)
      : shards_(std::move(shards)),
        store_(&store),
        buckets_(&buckets),
        communicator_(&communicator),
        device_(&device),
        access_(&access),
        facts_(device_->allocate(kFactsNumel, at::kDouble)),
        no_facts_(device_->allocate(kFactsNumel, at::kDouble)),
        shards_of_(buckets.trained_count()) {
    for (const OptimizerConfig& group : groups) groups_.push_back(std::get<LambConfig>(group));
    std::vector<int64_t> numels(shards_of_.size());  // total length of each bucket's shards
    size_t most_parameters = 0;
    for (size_t index = 0; index < shards_.size(); ++index) {
      const Shard& shard = shards_[index];
      states_.push_back(
          {.first = borrow(shard, "exp_avg").values, .second = borrow(shard, "exp_avg_sq").values});
      shards_of_[shard.bucket].push_back(static_cast<int>(index));
      direction_begins_.push_back(numels[shard.bucket]);
      numels[shard.bucket] += shard.values.numel();
      most_parameters = std::max(most_parameters, store.layout(shard.bucket).parameters.size());
    }
    const int64_t widest = numels.empty() ? 0 : *std::ranges::max_element(numels);
    for (Pass& pass : passes_) {
      const auto norms = static_cast<int64_t>(2 * most_parameters);
      pass.directions = device_->allocate(widest, at::kFloat);
      pass.tallies = device_->allocate(norms * kTallyDoubles, at::kDouble);
      pass.squares = device_->allocate(norms, at::kDouble);
      pass.told = device_->allocate_on_host(norms, at::kDouble);
    }
    tell_device(no_facts_, {.norm = 0, .divisor = 1, .factor = 1, .apply = 1});
  }

  // The host computes each parameter's step size.
  bool reads_facts() const override { return true; }

  void step(const at::Tensor& facts, const std::function<void(int)>& updated) override {
    ++steps_;
    device_->copy(facts_, facts);
    const int count = buckets_->trained_count();
    const bool backwards = access_->goes_backwards();
    auto bucket_at = [&](int position) { return backwards ? count - 1 - position : position; };
    plan_.clear();
    auto in_turn = [&](const auto& start, const auto& finish) {
      for (int position = 0; position <= count; ++position) {
        if (position < count) start(bucket_at(position));
        if (position > 0) finish(bucket_at(position - 1));
      }
    };
    auto add_to_plan = [&](int bucket) {
      plan_.insert(plan_.end(), shards_of_[bucket].begin(), shards_of_[bucket].end());
    };
    in_turn(add_to_plan, add_to_plan);
    access_->plan(plan_);
    in_turn([&](int bucket) { start_bucket(bucket); }, [&](int bucket) { finish_bucket(bucket, updated); });
  }

  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override { steps_ = steps; }

  double lr(int group) const override { return groups_[group].lr; }
  void set_lr(int group, double lr) override { groups_[group].lr = lr; }
  std::optional<std::pair<double, double>> betas(int group) const override {
    return std::pair(groups_[group].beta1, groups_[group].beta2);
  }
  void set_betas(int group, std::pair<double, double> betas) override {
    std::tie(groups_[group].beta1, groups_[group].beta2) = betas;
  }
  void set_weight_decay(int group, double weight_decay) override {
    groups_[group].weight_decay = weight_decay;
  }
  int groups() const override { return static_cast<int>(groups_.size()); }

  int64_t buffer_bytes() const override {
    return static_cast<int64_t>(passes_[0].directions.nbytes() + passes_[1].directions.nbytes());
  }

 private:
  struct State {
    at::Tensor first;
    at::Tensor second;
  };

  // A bucket's buffers between start_bucket() and finish_bucket(); two buckets are processed at a time.
  struct Pass {
    at::Tensor directions;  // of the bucket's shards, concatenated
    at::Tensor tallies;     // two per parameter: the Tally of its values, then the Tally of its direction
    at::Tensor squares;     // the sums of squares in `tallies`
    at::Tensor told;        // `squares` in host memory
    std::unique_ptr<Work> work;
    Event copied;
  };

  const std::vector<int>& parameters_of(int bucket) const { return store_->layout(bucket).parameters; }
  Pass& pass_of(int bucket) { return passes_[bucket % 2]; }

  void tell_device(const at::Tensor& facts, const StepFacts& known) {
    at::Tensor on_host = device_->allocate_on_host(kFactsNumel, at::kDouble);
    std::memcpy(on_host.mutable_data_ptr(), &known, sizeof known);
    device_->copy(facts, on_host);
  }

  at::Tensor direction_of(int shard) {
    return pass_of(shards_[shard].bucket)
        .directions.narrow(0, direction_begins_[shard], shards_[shard].values.numel());
  }

  void start_bucket(int bucket) {
    Pass& pass = pass_of(bucket);
    device_->zero(pass.tallies);
    for (int shard : shards_of_[bucket]) {
      access_->open(shard, ShardUse::moments);
      device_->update(direction_rule(groups_[shards_[shard].group]),
                      {.gradient = shards_[shard].gradient,
                       .values = shards_[shard].values,
                       .first = states_[shard].first,
                       .second = states_[shard].second,
                       .third = direction_of(shard),
                       .rounded = {}},
                      facts_);
      if (shards_[shard].rank == communicator_->rank()) add_squares(shard, pass);
      access_->close(shard, ShardUse::moments);
    }
    const auto norms = static_cast<int64_t>(2 * parameters_of(bucket).size());
    const at::Tensor squares = pass.squares.narrow(0, 0, norms);
    squares.copy_(pass.tallies.view({-1, kTallyDoubles}).select(1, 0).narrow(0, 0, norms));
    pass.work = communicator_->all_reduce(squares, "Lamb's norms of " + buckets_->label(bucket));
  }

  // Returns the range of the parameter's elements in the shard, relative to the start of the shard.
  Range range_in(const Shard& shard, int parameter) const {
    const auto [begin, numel] =
        overlap(store_->range_in_slice(parameter, shard.rank), {shard.begin, shard.values.numel()});
    return {.begin = begin - shard.begin, .numel = numel};
  }

  // Called for shards of this rank's own slices only, although at stage 0 a rank has all slices. So the
  // all-reduce adds the same numbers at all stages.
  void add_squares(int index, const Pass& pass) {
    const Shard& shard = shards_[index];
    const auto& parameters = parameters_of(shard.bucket);
    const at::Tensor direction = direction_of(index);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Range piece = range_in(shard, parameters[i]);
      if (piece.numel == 0) continue;
      auto tally = [&](size_t which) {
        return pass.tallies.narrow(0, static_cast<int64_t>(2 * i + which) * kTallyDoubles, kTallyDoubles);
      };
      device_->add_squares(tally(0), shard.values.narrow(0, piece.begin, piece.numel), 1, 1);
      device_->add_squares(tally(1), direction.narrow(0, piece.begin, piece.numel), 1, 1);
    }
  }

  void finish_bucket(int bucket, const std::function<void(int)>& updated) {
    Pass& pass = pass_of(bucket);
    Streams& streams = device_->streams();
    pass.work->wait();
    device_->copy(pass.told, pass.squares);
    streams.record(pass.copied, streams.current());
    streams.await(pass.copied, communicator_->timeout(), "Lamb's norms of " + buckets_->label(bucket));
    for (int shard : shards_of_[bucket]) {
      access_->open(shard, ShardUse::update);
      apply(shard);
      access_->close(shard, ShardUse::update);
      updated(shard);
    }
  }

  void apply(int index) {
    const Shard& shard = shards_[index];
    const LambConfig& group = groups_[shard.group];
    const auto& parameters = parameters_of(shard.bucket);
    const double* squares = pass_of(shard.bucket).told.const_data_ptr<double>();
    const at::Tensor direction = direction_of(index);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Range piece = range_in(shard, parameters[i]);
      if (piece.numel == 0) continue;
      auto part = [&](const at::Tensor& whole) {
        return whole.defined() ? whole.narrow(0, piece.begin, piece.numel) : whole;
      };
      const double ratio = trust_ratio(group, std::sqrt(squares[2 * i]), std::sqrt(squares[2 * i + 1]));
      device_->update(SgdUpdate{.lr = static_cast<float>(step_size(group) * ratio), .gradient_decay = 0},
                      {.gradient = part(direction),
                       .values = part(shard.values),
                       .first = {},
                       .second = {},
                       .third = {},
                       .rounded = part(shard.rounded)},
                      no_facts_);
    }
  }

  // Rounded to float32, which hides almost all differences from the order in which the sums of slices were
  // added.
  static float trust_ratio(const LambConfig& group, double norm, double direction_norm) {
    if (norm == 0 || direction_norm == 0) return 1;
    return static_cast<float>(std::max(std::min(norm / direction_norm, group.max_coeff), group.min_coeff));
  }

  double step_size(const LambConfig& group) const {
    if (!group.bias_correction) return group.lr;
    const auto steps = static_cast<double>(steps_);
    return group.lr * std::sqrt(1 - std::pow(group.beta2, steps)) / (1 - std::pow(group.beta1, steps));
  }

  static LambDirection direction_rule(const LambConfig& group) {
    const auto eps = static_cast<float>(group.eps);
    return {.beta1 = static_cast<float>(group.beta1),
            .new_in_first = static_cast<float>(1 - group.beta1),
            .beta2 = static_cast<float>(group.beta2),
            .new_in_second = static_cast<float>(1 - group.beta2),
            .eps_in_root = group.eps_inside_sqrt ? eps : 0,
            .eps = group.eps_inside_sqrt ? 0 : eps,
            .decay = static_cast<float>(group.weight_decay)};
  }

  std::vector<LambConfig> groups_;
  std::vector<Shard> shards_;
  const SliceStore* store_;
  const Buckets* buckets_;
  Communicator* communicator_;
  Device* device_;
  StateAccess* access_;
  at::Tensor facts_;     // the step's facts, in device memory
  at::Tensor no_facts_;  // facts that leave directions unscaled
  std::vector<State> states_;
  std::vector<std::vector<int>> shards_of_;  // by bucket
  std::vector<int64_t> direction_begins_;    // by shard: offset of its direction in Pass::directions
  std::vector<int> plan_;
  std::array<Pass, 2> passes_;
  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<ShardOptimizer> make_lamb_optimizer(const std::vector<OptimizerConfig>& groups,
                                                    std::vector<Shard> shards, const BorrowMoment& borrow,
                                                    const SliceStore& store, const Buckets& buckets,
                                                    Communicator& communicator, Device& device,
                                                    StateAccess& access) {
  return std::make_unique<LambOptimizer>(groups, std::move(shards), borrow, store, buckets, communicator,
                                         device, access);
}

}  // namespace zerorun
