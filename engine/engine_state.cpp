#include "engine/engine_state.h"

#include <ATen/ops/zeros.h>

#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/setup.h"
#include "optim/client_optimizer.h"
#include "optim/gradient_norm.h"
#include "optim/schedule.h"

namespace zerorun {
namespace {

constexpr int64_t kStepsPerBreakdown = 10;  // when steps_per_print is absent

Averaging averaging_of(const Config& config, int world_size) {
  if (config.prescale_gradients) return {.before = 1.0 / world_size, .after = 1};
  return {.before = 1 / config.gradient_predivide_factor,
          .after = world_size / config.gradient_predivide_factor};
}

// Operators on parameters are told to the engine where parameters may not be there when they are used.
bool are_marked(StagePolicy policy, int world_size) {
  return policy.partition_parameters || (!policy.replicate_update && world_size > 1);
}

std::vector<NamedParameter> bucketed(const ModelParameters& model) {
  std::vector<NamedParameter> parameters = model.trained;
  parameters.insert(parameters.end(), model.frozen.begin(), model.frozen.end());
  return parameters;
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
              are_marked(policy, communicator->world_size())),
      residency(buckets.marked() ? std::make_unique<Residency>(buckets, *communicator, gather_limits(config),
                                                               [&model] { return model.is_training(); })
                                 : nullptr),
      reducer(buckets, *communicator, policy, config.zero.overlap_comm),
      timer(config.wall_clock_breakdown) {
  broadcast_others(parameters, *communicator);
  for (const auto& [name, tensor] : parameters.others) buffer_bytes += static_cast<int64_t>(tensor.nbytes());

  // A stage that updates everything still does so slice by slice: the same kernel calls as the other stages,
  // hence the same bits.
  std::vector<Shard> shards;
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    for (int rank = 0; rank < communicator->world_size(); ++rank) {
      if (!policy.replicate_update && rank != communicator->rank()) continue;
      const at::Tensor& sums = reducer.gradient(bucket);
      shards.push_back({.values = policy.replicate_update ? buckets.slice(bucket, buckets.flat(bucket), rank)
                                                          : buckets.shard(bucket),
                        .gradient = policy.replicate_update ? buckets.slice(bucket, sums, rank) : sums,
                        .group = buckets.layout(bucket).group});
      shard_bucket.push_back(bucket);
    }
  }
  optimizer = options.optimizer
                  ? make_client_optimizer(*options.optimizer, std::move(shards))
                  : make_fused_optimizer(group_configs(*config.optimizer, options), std::move(shards));
  for (int group = 0; group < optimizer->groups(); ++group) base_lrs.push_back(optimizer->lr(group));
  follow_schedule();
}

void Engine::State::check_before_step() const {
  if (backward_failed) {
    throw UserError(
        "engine.step() after a backward() that threw: its gradients are incomplete and the ranks may be "
        "out of step; end the run");
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

double Engine::State::reduce_and_measure() {
  {
    StepTimer::Scope scope(timer, Phase::reduction);
    reducer.finish_reduction();
  }
  StepTimer::Scope scope(timer, Phase::norm);
  const int ranks = communicator->world_size();
  const int rank = communicator->rank();
  while (true) {
    // Each rank's sum of squares in a place of its own, so that adding zeros is all the all-reduce does to
    // it; behind them how many ranks hold late gradients for each bucket.
    at::Tensor exchange = at::zeros({ranks + buckets.trained_count()}, at::kDouble);
    double* data = exchange.mutable_data_ptr<double>();
    for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
      at::Tensor sums = reducer.gradient(bucket);
      if (policy.replicate_update) sums = buckets.slice(bucket, sums, rank);
      data[rank] += sum_of_squares(sums.const_data_ptr<float>(), sums.numel());
      data[ranks + bucket] = reducer.has_late(bucket);
    }
    communicator->all_reduce(exchange, "the gradient norm")->wait();
    bool any_late = false;
    for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
      if (data[ranks + bucket] == 0) continue;
      reducer.reduce_late(bucket);
      any_late = true;
    }
    if (any_late) continue;
    double total = 0;
    for (int r = 0; r < ranks; ++r) total += data[r];
    finite = std::isfinite(total);
    return static_cast<float>(std::sqrt(total) / averaging.after);
  }
}

void Engine::State::update(double norm) {
  const double divisor = averaging.after * clip_divisor(norm, config.gradient_clipping);
  optimizer->step(divisor, [&](int shard) {
    if (residency) residency->gather_updated(shard_bucket[shard]);
  });
  buckets.bump_versions();
}

void Engine::State::follow_schedule() {
  if (!config.scheduler) return;
  for (int group = 0; group < optimizer->groups(); ++group) {
    optimizer->set_lr(group, scheduled_lr(*config.scheduler, base_lrs[group], global_steps - skipped_steps));
  }
}

void Engine::State::report() {
  if (communicator->rank() != 0) return;
  if (!step_applied) {
    log_warning("step " + std::to_string(global_steps) +
                " skipped: a gradient is not finite; parameters, optimizer and schedule stay as they were (" +
                std::to_string(skipped_steps) + " skipped so far)");
  }
  const int64_t interval = config.steps_per_print.value_or(kStepsPerBreakdown);
  if (timer.enabled() && global_steps % interval == 0) {
    log_info("step " + std::to_string(global_steps) + ": " + timer.report(interval));
  }
}

}  // namespace zerorun
