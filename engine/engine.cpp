#include "engine/engine.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <deque>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/rendezvous.h"
#include "engine/model_parameters.h"
#include "engine/setup.h"
#include "engine/step_timer.h"
#include "optim/client_optimizer.h"
#include "optim/gradient_norm.h"
#include "optim/schedule.h"
#include "optim/shard_optimizer.h"
#include "zero/buckets.h"
#include "zero/gradient_reducer.h"
#include "zero/stage.h"

namespace zerorun {
namespace {

constexpr int64_t kStepsPerBreakdown = 10;  // when steps_per_print is absent

// Gradients are averaged: multiplied by `before` on their way into the sum over ranks, divided by `after`
// behind it.
struct Averaging {
  double before;
  double after;
};

Averaging averaging_of(const Config& config, int world_size) {
  if (config.prescale_gradients) return {.before = 1.0 / world_size, .after = 1};
  return {.before = 1 / config.gradient_predivide_factor,
          .after = world_size / config.gradient_predivide_factor};
}

}  // namespace

struct Engine::State {
  State(torch::nn::Module& model, Config config, std::shared_ptr<Communicator> communicator,
        ModelParameters parameters, const InitializeOptions& options);

  void check_before_step() const;
  double reduce_and_measure();
  void update(double norm);
  void follow_schedule();
  void report();

  torch::nn::Module* model;
  Config config;
  std::shared_ptr<Communicator> communicator;
  StagePolicy policy;
  Averaging averaging;
  Buckets buckets;
  GradientReducer reducer;
  std::vector<int> shard_bucket;  // the bucket of each of the optimizer's shards
  std::unique_ptr<ShardOptimizer> optimizer;
  std::vector<double> base_lrs;
  int64_t buffer_bytes = 0;
  StepTimer timer;

  int64_t micro_steps = 0;
  int64_t global_steps = 0;
  int64_t skipped_steps = 0;
  double grad_norm = 0;
  bool finite = true;  // all gradients of the last optimizer step were
  bool step_applied = false;
  bool has_gradients = false;  // backward ran since the last step()
  bool backward_failed = false;
};

Engine::State::State(torch::nn::Module& model, Config given_config,
                     std::shared_ptr<Communicator> given_communicator, ModelParameters parameters,
                     const InitializeOptions& options)
    : model(&model),
      config(std::move(given_config)),
      communicator(std::move(given_communicator)),
      policy(policy_of(config.zero.stage)),
      averaging(averaging_of(config, communicator->world_size())),
      buckets(parameters.trained, make_model_layout(parameters, config, options, communicator->world_size()),
              *communicator),
      reducer(buckets, *communicator, policy, config.zero.overlap_comm),
      timer(config.wall_clock_breakdown) {
  for (int bucket = 0; bucket < buckets.count(); ++bucket) {
    communicator->broadcast(buckets.flat(bucket), 0, "initial values of " + buckets.label(bucket))->wait();
  }
  broadcast_others(parameters, *communicator);
  for (const auto& [name, tensor] : parameters.others) buffer_bytes += static_cast<int64_t>(tensor.nbytes());

  // A stage that updates everything still does so slice by slice: the same kernel calls as the other stages,
  // hence the same bits.
  std::vector<Shard> shards;
  for (int bucket = 0; bucket < buckets.count(); ++bucket) {
    for (int rank = 0; rank < communicator->world_size(); ++rank) {
      if (!policy.replicate_update && rank != communicator->rank()) continue;
      const at::Tensor& sums = reducer.gradient(bucket);
      shards.push_back({.values = buckets.slice(bucket, buckets.flat(bucket), rank),
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

Engine initialize(torch::nn::Module& model, const Config& config, InitializeOptions options) {
  check_one_optimizer(config, options);
  ModelParameters parameters = collect_parameters(model, options);
  auto communicator = options.communicator ? options.communicator : connect();
  check_world_size(config, communicator->world_size());
  check_ranks_agree(parameters, describe_settings(config, options), *communicator);
  if (communicator->rank() == 0) {
    for (const std::string& note : config.notes) log_info(note);
  }
  return Engine(std::make_unique<Engine::State>(model, config, std::move(communicator), std::move(parameters),
                                                options));
}

Engine initialize(torch::nn::Module& model, const std::filesystem::path& ds_config,
                  InitializeOptions options) {
  if (!options.communicator) options.communicator = connect();
  const Config config = load_config(ds_config, options.communicator->world_size());
  return initialize(model, config, std::move(options));
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

void Engine::backward(const at::Tensor& loss, bool retain_graph, bool create_graph) {
  State& state = *state_;
  if (!loss.defined() || loss.numel() != 1 || !loss.requires_grad()) {
    throw UserError("engine.backward(loss): expected a loss of one element that requires grad, found " +
                    (loss.defined() ? "a tensor of " + std::to_string(loss.numel()) + " elements" +
                                          (loss.requires_grad() ? "" : " that does not require grad")
                                    : std::string("an undefined tensor")));
  }
  StepTimer::Scope scope(state.timer, Phase::backward);
  const double scale =
      state.averaging.before / static_cast<double>(state.config.batch.gradient_accumulation_steps);
  state.reducer.start_backward(is_gradient_accumulation_boundary());
  try {
    loss.backward(at::full_like(loss, scale), retain_graph, create_graph);
    state.reducer.finish_backward();
  } catch (...) {
    state.reducer.abandon_backward();
    state.backward_failed = true;
    throw;
  }
  state.has_gradients = true;
}

void Engine::step() {
  State& state = *state_;
  state.check_before_step();
  const bool boundary = is_gradient_accumulation_boundary();
  ++state.micro_steps;
  state.has_gradients = false;
  state.step_applied = false;
  if (!boundary) return;

  state.grad_norm = state.reduce_and_measure();
  if (state.finite) {
    StepTimer::Scope scope(state.timer, Phase::update);
    state.update(state.grad_norm);
    state.step_applied = true;
  } else {
    ++state.skipped_steps;
  }
  ++state.global_steps;
  state.reducer.start_window();
  state.follow_schedule();
  state.report();
}

void Engine::State::check_before_step() const {
  if (backward_failed) {
    throw UserError(
        "engine.step() after a backward() that threw: its gradients are incomplete and the ranks may be out "
        "of "
        "step; end the run");
  }
  const auto& parameters = buckets.parameters();
  if (auto bypassed = reducer.bypassed()) {
    throw UserError(
        "a gradient of parameter " + parameters[*bypassed].name +
        " came from a backward that did not go through the engine, so it was neither reduced nor scaled: "
        "call engine.backward(loss) in place of loss.backward()");
  }
  for (size_t index = 0; index < parameters.size(); ++index) {
    if (!parameters[index].tensor.requires_grad()) {
      throw UserError(
          "parameter " + parameters[index].name +
          " was frozen after initialize(): freeze parameters before, or give them a learning rate of 0 in a "
          "parameter group of their own");
    }
    if (buckets.in_place(static_cast<int>(index))) continue;
    throw UserError(
        "parameter " + parameters[index].name +
        " has left its bucket since initialize() (module->to(), set_data() and torch::load() do that): "
        "move, convert and load before initialize(), or copy values in place under torch::NoGradGuard");
  }
  if (!has_gradients) throw UserError("engine.step() without engine.backward(loss) before it");
}

// Ends the reduction; returns the norm of the averaged gradients, the same bits on every rank and at every
// stage.
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
    at::Tensor exchange = at::zeros({ranks + buckets.count()}, at::kDouble);
    double* data = exchange.mutable_data_ptr<double>();
    for (int bucket = 0; bucket < buckets.count(); ++bucket) {
      at::Tensor sums = reducer.gradient(bucket);
      if (policy.replicate_update) sums = buckets.slice(bucket, sums, rank);
      data[rank] += sum_of_squares(sums.const_data_ptr<float>(), sums.numel());
      data[ranks + bucket] = reducer.has_late(bucket);
    }
    communicator->all_reduce(exchange, "the gradient norm")->wait();
    bool any_late = false;
    for (int bucket = 0; bucket < buckets.count(); ++bucket) {
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
  std::deque<std::unique_ptr<Work>> gathers;
  optimizer->step(divisor, [&](int shard) {
    if (policy.replicate_update) return;
    const int bucket = shard_bucket[shard];
    at::Tensor own = buckets.slice(bucket, buckets.flat(bucket), communicator->rank());
    gathers.push_back(
        communicator->all_gather(buckets.flat(bucket), own, "parameters of " + buckets.label(bucket)));
    if (!config.zero.overlap_comm) {
      gathers.back()->wait();
      gathers.pop_back();
    }
  });
  for (auto& gather : gathers) gather->wait();
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

void Engine::train() {
  state_->model->train();
}
void Engine::eval() {
  state_->model->eval();
}

bool Engine::is_gradient_accumulation_boundary() const {
  return (state_->micro_steps + 1) % state_->config.batch.gradient_accumulation_steps == 0;
}

std::vector<double> Engine::get_lr() const {
  std::vector<double> lrs;
  for (int group = 0; group < state_->optimizer->groups(); ++group)
    lrs.push_back(state_->optimizer->lr(group));
  return lrs;
}

double Engine::get_global_grad_norm() const {
  return state_->grad_norm;
}
bool Engine::was_step_applied() const {
  return state_->step_applied;
}
int64_t Engine::global_steps() const {
  return state_->global_steps;
}
int64_t Engine::skipped_steps() const {
  return state_->skipped_steps;
}

BytesByCategory Engine::bytes_by_category() const {
  return {.parameters = state_->buckets.bytes(),
          .gradients = state_->reducer.gradient_bytes(),
          .master = 0,
          .moments = state_->optimizer->state_bytes(),
          .buckets = state_->reducer.buffer_bytes(),
          .buffers = state_->buffer_bytes};
}

double Engine::formula_bytes() const {
  return model_state_bytes(state_->buckets.numel(), state_->communicator->world_size(), state_->policy,
                           state_->optimizer->moment_bytes());
}

const Config& Engine::config() const {
  return state_->config;
}
Communicator& Engine::communicator() {
  return *state_->communicator;
}

}  // namespace zerorun
