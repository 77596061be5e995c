// The variants of a training step that bench_step compares. They take turns within one run.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "benchmarks/silenceable_communicator.h"
#include "benchmarks/training_options.h"
#include "benchmarks/work_meter.h"
#include "engine/engine.h"
#include "samples/gpt2/model.h"

namespace zerorun {

struct StepOptions : TrainingOptions {
  int rounds = 10;
  bool overlap = true;
};

// The cost of one step: milliseconds of the slowest rank, CPU time and instructions of all ranks together.
struct StepCost {
  double milliseconds;
  double cpu_milliseconds;
  double instructions;  // NaN if the kernel does not count them
};

struct Variant {
  bool communicates;
  bool waits_in_step;
  bool plain;  // loss.backward() instead of engine.backward()
  std::shared_ptr<SilenceableCommunicator> communicator;
  samples::Gpt2 model;
  Engine engine;
  std::vector<double> milliseconds;
  std::vector<double> cpu_milliseconds;
  std::vector<double> instructions;

  void note(const StepCost& cost);
};

/// An engine around a new model. `config`: the text of a ds_config.json.
Variant make_variant(const StepOptions& options, const nlohmann::json& config, bool communicates,
                     std::shared_ptr<Communicator> communicator);

/// Waits for the updated values of all parameters.
void await_updates(Variant& variant);

/// Returns the loss before the step.
at::Tensor train_step(Variant& variant, const at::Tensor& tokens);

inline constexpr int kStepsOfTurn = 3;

/// Runs kStepsOfTurn steps and returns the mean cost, because a step may leave work to the next step.
StepCost time_step(Variant& variant, const at::Tensor& tokens, Communicator& communicator,
                   const WorkMeter& meter);

}  // namespace zerorun
