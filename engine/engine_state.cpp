#include "engine/engine_state.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "device/dtypes.h"
#include "engine/schedules.h"
#include "engine/setup.h"
#include "optim/client_optimizer.h"
#include "optim/whole_parameter_optimizers.h"

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

BucketOptions bucket_options(const Config& config, StagePolicy policy, const Communicator& communicator) {
  // Operators on parameters are told to the engine also for what they write to 16-bit ones, and for the
  // streams that they run on.
  return {.marked = come_and_go(policy, communicator.world_size()) ||
                    config.precision.training != Dtype::fp32 ||
                    communicator.device().streams().asynchronous(),
          .shared = !policy.replicate_update && communicator.world_size() > 1,
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
      buckets(bucketed(parameters), make_model_layout(parameters, config, options, *communicator),
              *communicator, bucket_options(config, policy, *communicator)),
      residency(buckets.marked() ? std::make_unique<Residency>(buckets, *communicator, gather_limits(config),
                                                               [&model] { return model.is_training(); })
                                 : nullptr),
      reducer(buckets, *communicator, reducer_options(config, policy, averaging.before)),
      lr_scheduler(options.lr_scheduler),
      timer(config.wall_clock_breakdown, communicator->device().streams()) {
  broadcast_others(parameters, *communicator);
  for (const NamedTensor& other : parameters.others)
    buffer_bytes += static_cast<int64_t>(other.tensor.nbytes());

  optimizer = make_optimizer(options);
  schedule = make_schedule(config, options, *optimizer, communicator->rank() == 0);
  int64_t number = 1;
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    first_sums.push_back(number);
    number += buckets.layout(bucket).numel;
  }
  if (config.precision.training == Dtype::fp16) scaler.emplace(config.precision.loss_scale);
  const int64_t numel = exchanged_numel(communicator->world_size()) + kFactsNumel;
  exchange = communicator->device().allocate(numel, at::kDouble);
  told = communicator->device().allocate_on_host(numel, at::kDouble);
  ask_schedule();

  // The streams that the program uses from here on may be others.
  Streams& streams = communicator->device().streams();
  Event ready;
  streams.record(ready, streams.current());
  streams.await(ready, communicator->timeout(), "the initial values");
}

// What the last step came to is logged, should nobody have asked.
Engine::State::~State() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    settle();
  } catch (const std::exception& error) {
    log_warning(std::string("the outcome of the last step is not known: ") + error.what());
  }
}

std::unique_ptr<ShardOptimizer> Engine::State::make_optimizer(const InitializeOptions& options) {
  std::vector<Shard> shards = make_shards();
  Device& device = communicator->device();
  if (options.optimizer) return make_client_optimizer(*options.optimizer, std::move(shards), device);
  std::vector<OptimizerConfig> groups = group_configs(*config.optimizer, options);
  switch (config.optimizer->type) {
    case OptimizerType::lamb:
      return make_lamb_optimizer(std::move(groups), std::move(shards), buckets, *communicator);
    case OptimizerType::muon:
      return make_muon_optimizer(std::move(groups), std::move(shards), buckets, *communicator);
    default:
      return make_fused_optimizer(std::move(groups), std::move(shards), device);
  }
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
                        .group = buckets.layout(bucket).group,
                        .bucket = bucket,
                        .rank = rank});
      shard_bucket.push_back(bucket);
      if (rank == communicator->rank()) own_shards.push_back(static_cast<int>(shards.size()) - 1);
    }
  }
  return shards;
}

void Engine::State::check_not_failed(const std::string& call) const {
  if (!backward_failed) return;
  throw UserError(
      "engine." + call +
      "() after a backward() that threw: its gradients are incomplete and the ranks may be out of "
      "step; end the run");
}

void Engine::State::check_before_step() const {
  check_not_failed("step");
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

void Engine::State::measure() {
  {
    StepTimer::Scope scope(timer, Phase::reduction);
    reducer.finish_window();
  }
  StepTimer::Scope scope(timer, Phase::norm);
  for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) {
    at::Tensor sums = reducer.gradient(bucket);
    if (policy.replicate_update) sums = buckets.slice(bucket, sums, communicator->rank());
    communicator->device().add_squares(reducer.tally(), sums, sum_number(bucket, communicator->rank()));
  }
  agree({.scale = averaging.after * loss_scale(), .clipping = config.gradient_clipping});
}

void Engine::State::make_directions() {
  StepTimer::Scope scope(timer, Phase::update);
  const std::span<const at::Tensor> directions = optimizer->make_directions(averaging.after * loss_scale());
  for (int shard : own_shards) {
    communicator->device().add_squares(reducer.tally(), directions[shard],
                                       sum_number(shard_bucket[shard], communicator->rank()));
  }
  agree({.scale = 1, .clipping = config.gradient_clipping});
}

void Engine::State::agree(const StepRule& rule) {
  const int ranks = communicator->world_size();
  Device& device = communicator->device();
  Streams& streams = device.streams();
  device.publish(exchange, reducer.tally(), communicator->rank(), ranks);
  communicator->all_reduce(exchange.narrow(0, 0, exchanged_numel(ranks)), "the gradient norm")->wait();
  device.decide(exchange, ranks, rule);
  streams.record(measured, streams.current());
  StreamScope copies(streams, Lane::copy);
  streams.wait(measured, streams.current(), Handover::measured);
  device.copy(told, exchange);
  streams.record(copied, streams.current());
}

// A device with streams skips the update by itself. The loss scale of the next backward needs an answer now.
bool Engine::State::waits_for_facts() const {
  return scaler || optimizer->reads_facts() || !communicator->device().streams().asynchronous();
}

void Engine::State::learn() {
  // Behind all that the device has been given for this step. That a rank is missing is the communicator's to
  // find out, which can say which.
  constexpr std::chrono::milliseconds kPatienceWithDevice = std::chrono::minutes(30);
  communicator->device().streams().await(copied, std::max(2 * communicator->timeout(), kPatienceWithDevice),
                                         "the gradient norm");
  const auto ranks = static_cast<size_t>(communicator->world_size());
  const double* exchanged = told.const_data_ptr<double>();
  StepFacts facts;
  std::memcpy(&facts, exchanged + exchanged_numel(communicator->world_size()), sizeof facts);
  grad_norm = facts.norm;
  step_applied = facts.apply != 0;
  not_finite =
      step_applied ? "" : name_not_finite({exchanged + ranks, ranks}, {exchanged + 2 * ranks, ranks});
}

int64_t Engine::State::sum_number(int bucket, int rank) const {
  return first_sums[bucket] + rank * buckets.layout(bucket).slice_numel;
}

const std::string& Engine::State::parameter_of_sum(int64_t number) const {
  int bucket = 0;
  while (number >= sum_number(bucket, 0) + buckets.layout(bucket).numel) ++bucket;
  return buckets.parameters()[buckets.parameter_at(bucket, number - sum_number(bucket, 0))].name;
}

std::string Engine::State::name_not_finite(std::span<const double> gradients,
                                           std::span<const double> sums) const {
  auto first = [](std::span<const double> all) {
    int found = -1;
    for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
      if (all[rank] > 0 && (found < 0 || all[rank] < all[found])) found = rank;
    }
    return found;
  };
  if (const int rank = first(gradients); rank >= 0) {
    const auto [parameter, too_large] = reducer.not_finite(static_cast<int64_t>(gradients[rank]));
    return "the gradient of parameter " + buckets.parameters()[parameter].name + " on rank " +
           std::to_string(rank) +
           (too_large ? std::string(" is too large for ") + name_of(config.precision.communication) +
                            ", in which gradients travel"
                      : " is not finite");
  }
  const int rank = first(sums);
  ZR_CHECK(rank >= 0, "the norm is not finite, every gradient is");
  return "the sum over ranks and micro-steps of the gradients of parameter " +
         parameter_of_sum(static_cast<int64_t>(sums[rank])) + " is not finite, though each gradient is";
}

void Engine::State::update() {
  StepTimer::Scope scope(timer, Phase::update);
  if (residency) {
    for (int bucket = 0; bucket < buckets.trained_count(); ++bucket) residency->start_update(bucket);
  }
  buckets.follow_writes();
  const int ranks = communicator->world_size();
  const bool gathers = !policy.replicate_update && ranks > 1;
  const at::Tensor& known = optimizer->reads_facts() ? told : exchange;
  optimizer->step(known.narrow(0, exchanged_numel(ranks), kFactsNumel), [&](int shard) {
    if (residency) residency->finish_update(shard_bucket[shard], gathers);
  });
  buckets.bump_versions();
}

void Engine::State::conclude() {
  if (!step_applied) ++skipped_steps;
  schedule_behind = step_applied;
  follow_loss_scale();
  report_time();
}

void Engine::State::settle() {
  if (!open_step) return;
  learn();
  open_step = false;
  if (!step_applied) optimizer->take_back_step();
  conclude();
}

void Engine::State::ask_schedule() {
  if (!schedule) return;
  std::vector<ScheduledValues> values;
  for (int group = 0; group < optimizer->groups(); ++group)
    values.push_back(schedule(global_steps - skipped_steps, group));
  for (int group = 0; group < optimizer->groups(); ++group) {
    optimizer->set_lr(group, values[group].lr);
    if (values[group].betas) optimizer->set_betas(group, *values[group].betas);
  }
}

void Engine::State::follow_schedule() {
  if (!schedule_behind) return;
  if (lr_scheduler) lr_scheduler->step();
  ask_schedule();
  schedule_behind = false;
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

double Engine::State::moment_bytes() const {
  double total = 0;
  for (const NamedParameter& parameter : buckets.trained()) {
    total += static_cast<double>(parameter.tensor.numel()) * optimizer->moment_bytes(parameter.group);
  }
  return total / static_cast<double>(buckets.numel());
}

}  // namespace zerorun
