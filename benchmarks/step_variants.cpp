#include "benchmarks/step_variants.h"

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "benchmarks/figures.h"

namespace zerorun {

void Variant::note(const StepCost& cost) {
  milliseconds.push_back(cost.milliseconds);
  cpu_milliseconds.push_back(cost.cpu_milliseconds);
  instructions.push_back(cost.instructions);
}

Variant make_variant(const StepOptions& options, const nlohmann::json& config, bool communicates,
                     std::shared_ptr<Communicator> communicator) {
  samples::Gpt2 model(options.model);
  InitializeOptions initialize_options;
  auto own = std::make_shared<SilenceableCommunicator>(std::move(communicator), communicates);
  initialize_options.communicator = own;
  Engine engine =
      initialize(*model, parse_config(config.dump(), "bench_step", options.ranks), initialize_options);
  return {communicates, false, false, own, model, std::move(engine), {}, {}, {}};
}

// An operator on a parameter waits for its values. Parts of parameters have few operators, so tensor ranks
// start a collective behind all gathers instead.
void await_updates(Variant& variant) {
  const Mesh& mesh = variant.engine.mesh();
  if (mesh.has_groups()) return mesh.data().barrier("the end of timed steps")->wait();
  torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : variant.model->parameters()) parameter.flatten().narrow(0, 0, 1).clone();
}

at::Tensor train_step(Variant& variant, const at::Tensor& tokens) {
  const at::Tensor loss = variant.model->loss(tokens);
  if (variant.plain) {
    variant.engine.scale(loss).backward();
  } else {
    variant.engine.backward(loss);
  }
  variant.engine.step();
  return loss.detach();
}

StepCost time_step(Variant& variant, const at::Tensor& tokens, Communicator& communicator,
                   const WorkMeter& meter) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  communicator.barrier("the start of timed steps")->wait();
  const WorkDone before = meter.so_far();
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < kStepsOfTurn; ++step) {
    train_step(variant, tokens);
    if (variant.waits_in_step) await_updates(variant);
  }
  await_updates(variant);
  const double mine = milliseconds_since(begin);
  const WorkDone after = meter.so_far();
  at::Tensor times = torch::zeros({communicator.world_size()}, at::kDouble);
  times[communicator.rank()] = mine / kStepsOfTurn;
  communicator.all_reduce(times, "step times")->wait();
  at::Tensor work = torch::tensor({(after.cpu_seconds - before.cpu_seconds) * 1000,
                                   after.instructions.value_or(kNone) - before.instructions.value_or(kNone)},
                                  at::kDouble);
  work /= kStepsOfTurn;
  communicator.all_reduce(work, "the work of a step")->wait();
  return {.milliseconds = times.max().item<double>(),
          .cpu_milliseconds = work[0].item<double>(),
          .instructions = work[1].item<double>()};
}

}  // namespace zerorun
