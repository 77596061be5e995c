#include "engine/engine_state.h"

#include <ATen/ops/zeros.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/dtypes.h"
#include "engine/setup.h"
#include "optim/client_optimizer.h"
#include "optim/gradient_norm.h"
#include "optim/schedule.h"
#include "zero/gradient_copy.h"

namespace zerorun {
namespace {

constexpr int64_t kStepsPerBreakdown = 10;  // when steps_per_print is absent

// Sums over ranks in fp16 must not overflow where no gradient does: unless the config says otherwise, they
// are of gradients divided by a power of two, which but for the smallest values costs no bit.
Averaging averaging_of(const Config& config, int world_size) {
  const double whole = config.average_gradients ? world_size : 1;
  double divided_before = config.gradient_predivide_factor;
  if (config.prescale_gradients) {
    divided_before = whole;
  } else if (divided_before == 1 && config.precision.communication == Dtype::fp16) {
    divided_before = std::bit_ceil(static_cast<unsigned>(world_size));
  }
  return {.before = 1 / divided_before, .after = whole / divided_before};
}

// Parameters are not always there when they are used.
bool come_and_go(StagePolicy policy, int world_size) {
  return policy.partition_parameters || (!policy.replicate_update && world_size > 1);
}

std::vector<NamedParameter> bucketed(const ModelParameters& model) {
  std::vector<NamedParameter> parameters = model.trained;
  parameters.insert(parameters.end(), model.frozen.begin(), model.frozen.end());
  return parameters;
}

BucketOptions bucket_options(const Config& config, StagePolicy policy, int world_size) {
  // Operators on parameters are told to the engine also for what they write to 16-bit ones.
  return {.marked = come_and_go(policy, world_size) || config.precision.training != Dtype::fp32,
          .dtype = config.precision.training,
          .master_from_fp32 = config.precision.master_from_fp32,
          .whole_master = policy.replicate_update};
}

ReducerOptions reducer_options(const Config& config, StagePolicy policy, double factor) {
  return {.policy = policy,
          .overlap = config.zero.overlap_comm,
          .communication = config.precision.communication,
          .accumulation = config.precision.accumulation,
          .accumulates = config.batch.gradient_accumulation_steps > 1,
          .factor = static_cast<float>(factor)};
}

GatherLimits gather_limits(const Config& config) {
  return {.max_live = config.zero.max_live_parameters,
          .max_reuse_distance = config.zero.max_reuse_distance,
          .prefetch = config.zero.prefetch_bucket_size};
}

}  // namespace

Engine::State::State(torch::nn::Module& model, Config given_config,
                     std::shared_ptr<Communicator> given_communicator, ModelParameters parameters,
                     const InitializeOptions& options)
    : model(&model),
      config(std::move(given_config)),
      communicator(std::move(given_communicator)),
      policy(policy_of(config.zero.stage)),
      averaging(averaging_of(config, communicator->world_size())),
      buckets(bucketed(parameters),
              make_model_layout(parameters, config, options, communicator->world_size()), *communicator,
              bucket_options(config, policy, communicator->world_size())),
      residency(buckets.marked() ? std::make_unique<Residency>(buckets, *communicator, gather_limits(config),
                                                               [&model] { return model.is_training(); })
                                 : nullptr),
      reducer(buckets, *communicator, reducer_options(config, policy, averaging.before)),
      timer(config.wall_clock_breakdown) {
  broadcast_others(parameters, *communicator);
  for (const NamedTensor& other : parameters.others)
    buffer_bytes += static_cast<int64_t>(other.tensor.nbytes());

  std::vector<Shard> shards = make_shards();
  optimizer = options.optimizer
                  ? make_client_optimizer(*options.optimizer, std::move(shards))
                  : make_fused_optimizer(group_configs(*config.optimizer, options), std::move(shards));
  for (int group = 0; group < optimizer->groups(); ++group) base_lrs.push_back(optimizer->lr(group));
  if (config.precision.training == Dtype::fp16) scaler.emplace(config.precision.loss_scale);
  follow_schedule();
}

// A stage that updates everything still does so slice by slice: the same kernel calls as the other stages,
// hence the same bits.
std::vector<Shard> Engine::State::make_shards() {
  std::vector<Shard> shards;
  const bool has_master = config.precision.training != Dtype::fp32;
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    for (int rank = 0; rank < communicator->world_size(); ++rank) {
      if (!policy.replicate_update && rank != communicator->rank()) continue;
      auto part = [&](const at::Tensor& kept) {
        return policy.replicate_update ? buckets.slice(bucket, kept, rank) : kept;
      };
      const at::Tensor values = part(policy.replicate_update ? buckets.flat(bucket) : buckets.shard(bucket));
      shards.push_back({.values = has_master ? part(buckets.master(bucket)) : values,
                        .gradient = part(reducer.gradient(bucket)),
                        .rounded = has_master ? values : at::Tensor(),
                        .group = buckets.layout(bucket).group});
      shard_bucket.push_back(bucket);
    }
  }
  return shards;
}

void Engine::State::check_before_step() const {
  if (backward_failed) {
    throw UserError(
        "engine.step() after a backward() that threw: its gradients are incomplete and the ranks may be "
        "out of step; end the run");
  }
  if (open_no_syncs > 0) {
    throw UserError(
        "engine.step() inside a no_sync() scope, where gradients are not reduced: end the scope "
        "before the last backward()");
  }
  if (open_scopes > 0) {
    throw UserError("engine.step() inside a GatheredParameters scope: close the scope before");
  }
  const auto& parameters = buckets.parameters();
  if (auto bypassed = reducer.bypassed()) {
    throw UserError(
        "a gradient of parameter " + parameters[*bypassed].name +
        " came from a backward that did not go through the engine, so it was neither reduced nor scaled: "
        "call engine.backward(loss) in place of loss.backward()");
  }
  for (size_t index = 0; index < parameters.size(); ++index) {
    const bool trained = parameters[index].group != kFrozen;
    if (parameters[index].tensor.requires_grad() != trained) {
      throw UserError("parameter " + parameters[index].name +
                      (trained
                           ? " was frozen after initialize(): freeze parameters before, or give them a "
                             "learning rate of 0 in a parameter group of their own"
                           : " was unfrozen after initialize(): parameters to train require grad before"));
    }
    if (buckets.in_place(static_cast<int>(index))) continue;
    throw UserError(
        "parameter " + parameters[index].name +
        " has left its bucket since initialize() (module->to(), set_data() and torch::load() do that): "
        "move, convert and load before initialize(), or copy values in place under torch::NoGradGuard");
  }
  if (!has_gradients) throw UserError("engine.step() without engine.backward(loss) before it");
}

void Engine::State::reduce_and_measure() {
  {
    StepTimer::Scope scope(timer, Phase::reduction);
    reducer.finish_reduction();
  }
  StepTimer::Scope scope(timer, Phase::norm);
  const int ranks = communicator->world_size();
  const int rank = communicator->rank();
  while (true) {
    // Each rank's sum of squares and first gradient that is not finite in a place of its own, so that adding
    // zeros is all the all-reduce does to them; behind them how many ranks hold late gradients for each
    // bucket.
    at::Tensor exchange = at::zeros({2 * ranks + buckets.trained_count()}, at::kDouble);
    double* data = exchange.mutable_data_ptr<double>();
    double* findings = data + ranks;
    double* late = findings + ranks;
    if (const auto found = reducer.not_finite()) {
      findings[rank] = finding(found->arrival, found->parameter, found->too_large);
    }
    for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
      at::Tensor sums = reducer.gradient(bucket);
      if (policy.replicate_update) sums = buckets.slice(bucket, sums, rank);
      data[rank] += sum_of_squares(sums.const_data_ptr(), dtype_of(sums), sums.numel());
      late[bucket] = reducer.has_late(bucket);
    }
    communicator->all_reduce(exchange, "the gradient norm")->wait();
    bool any_late = false;
    for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
      if (late[bucket] == 0) continue;
      reducer.reduce_late(bucket);
      any_late = true;
    }
    if (any_late) continue;
    double total = 0;
    for (int r = 0; r < ranks; ++r) total += data[r];
    not_finite = std::isfinite(total) ? "" : name_not_finite({findings, static_cast<size_t>(ranks)});
    const double norm = std::sqrt(total) / (averaging.after * loss_scale());
    // Rounded, so that the order in which slices were added shows nowhere.
    grad_norm = norm <= std::numeric_limits<float>::max() ? static_cast<float>(norm) : norm;
    if (!not_finite.empty()) grad_norm = std::numeric_limits<double>::infinity();
    return;
  }
}

// Where a gradient was not finite, as one number of at least 2: the smaller, the earlier.
double Engine::State::finding(int64_t position, int parameter, bool too_large) const {
  const int64_t place = position * static_cast<int64_t>(buckets.trained().size()) + parameter;
  return static_cast<double>(2 * (place + 1) + too_large);
}

std::string Engine::State::name_not_finite(std::span<const double> findings) {
  auto first = [&](std::span<const double> all) {
    int found = -1;
    for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
      if (all[rank] > 0 && (found < 0 || all[rank] < all[found])) found = rank;
    }
    return found;
  };
  auto name = [&](double found) -> const std::string& {
    return buckets.parameters()[(static_cast<int64_t>(found) / 2 - 1) % buckets.trained().size()].name;
  };
  if (const int rank = first(findings); rank >= 0) {
    const bool too_large = static_cast<int64_t>(findings[rank]) % 2 == 1;
    return "the gradient of parameter " + name(findings[rank]) + " on rank " + std::to_string(rank) +
           (too_large ? std::string(" is too large for ") + name_of(config.precision.communication) +
                            ", in which gradients travel"
                      : " is not finite");
  }
  // Every gradient was: a sum of them is not. Each rank looks at its slices.
  at::Tensor searched = at::zeros({communicator->world_size()}, at::kDouble);
  double* data = searched.mutable_data_ptr<double>();
  const int rank = communicator->rank();
  for (int bucket = 0; bucket < buckets.trained_count() && data[rank] == 0; ++bucket) {
    at::Tensor sums = reducer.gradient(bucket);
    if (policy.replicate_update) sums = buckets.slice(bucket, sums, rank);
    const int64_t at = first_not_finite(sums);
    if (at >= 0) data[rank] = finding(bucket, buckets.parameter_at(bucket, rank * sums.numel() + at), false);
  }
  communicator->all_reduce(searched, "the search for what is not finite")->wait();
  const std::span<const double> all(data, communicator->world_size());
  ZR_CHECK(first(all) >= 0, "the norm is not finite, every gradient is");
  return "the sum over ranks and micro-steps of the gradients of parameter " + name(all[first(all)]) +
         " is not finite, though each gradient is";
}

void Engine::State::update() {
  buckets.follow_writes();
  const double divisor = averaging.after * loss_scale() * clip_divisor(grad_norm, config.gradient_clipping);
  const bool gathers = !policy.replicate_update && communicator->world_size() > 1;
  optimizer->step(divisor, [&](int shard) {
    if (gathers) residency->gather_updated(shard_bucket[shard]);
  });
  buckets.bump_versions();
}

void Engine::State::follow_schedule() {
  if (!config.scheduler) return;
  for (int group = 0; group < optimizer->groups(); ++group) {
    optimizer->set_lr(group, scheduled_lr(*config.scheduler, base_lrs[group], global_steps - skipped_steps));
  }
}

void Engine::State::follow_loss_scale() {
  const double before = loss_scale();
  const bool goes_on = !scaler || scaler->update(!step_applied);
  if (step_applied) return;
  const std::string what = "step " + std::to_string(global_steps) + " skipped: " + not_finite;
  if (!goes_on) {
    throw TrainingError(what + ", and the loss scale is at its minimum, fp16.min_loss_scale " +
                        c10::str(before) +
                        ": if it is this parameter's gradient again and again, look for what makes it so "
                        "large (by now the parameters themselves may be infinite); a lower learning rate or "
                        "bf16 may help");
  }
  if (communicator->rank() != 0) return;
  std::string rest = "; parameters, optimizer and schedule stay as they were (" +
                     std::to_string(skipped_steps) + " skipped so far)";
  if (scaler && scaler->scale() != before) {
    rest += c10::str(", the loss scale goes from ", before, " to ", scaler->scale());
  } else if (scaler) {
    rest += c10::str(", the loss scale stays at ", before);
  }
  log_warning(what + rest);
}

void Engine::State::report_time() {
  if (communicator->rank() != 0) return;
  const int64_t interval = config.steps_per_print.value_or(kStepsPerBreakdown);
  if (timer.enabled() && global_steps % interval == 0) {
    log_info("step " + std::to_string(global_steps) + ": " + timer.report(interval));
  }
}

}  // namespace zerorun
