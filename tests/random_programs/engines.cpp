#include "tests/random_programs/engines.h"

#include "config/config.h"
#include "tests/random_programs/checks.h"
#include "tests/random_programs/expected_errors.h"
#include "tests/random_programs/plain_training.h"

namespace zerorun::testing {
namespace {

Schedule make_schedule(int throws_at) {
  return [throws_at](int64_t step, int group) mutable {
    if (step == throws_at) {
      throws_at = -1;  // the next call succeeds
      throw std::runtime_error(kScheduleThrows);
    }
    return ScheduledValues(scheduled_rate(step, group));
  };
}

Groups groups_of(const Program& program, const Model& model, bool swaps) {
  Groups groups;
  for (size_t index = 0; index < program.parameters.size(); ++index) {
    const Parameter& parameter = program.parameters[index];
    const int group = swaps ? kGroups - 1 - parameter.group : parameter.group;
    if (!parameter.frozen) groups[group].push_back(model.all[index]);
  }
  return groups;
}

Config parsed(const Setup& setup) {
  return parse_config(config_of(setup), "the program", setup.ranks);
}

InitializeOptions options_for(const Setup& setup, std::shared_ptr<Communicator> communicator) {
  InitializeOptions options;
  options.communicator = std::move(communicator);
  if (setup.groups > 1) {
    options.mesh = {.data = setup.ranks, .tensor = setup.groups, .pipeline = 1};
    options.tensor_plan = TensorPlan();
  }
  return options;
}

}  // namespace

std::unique_ptr<ProgramEngine> make_engine(const Program& program, Model& model,
                                           std::shared_ptr<Communicator> communicator, bool swaps) {
  const Setup& setup = program.setup;
  const Groups groups = groups_of(program, model, swaps);
  auto made = std::make_unique<ProgramEngine>();
  made->moment = name_of_moment(setup);
  if (setup.source != Source::config) made->optimizer = make_optimizer(setup, groups);
  if (setup.source == Source::enable_zero) {
    made->zero = enable_zero(model, *made->optimizer, setup.stage, std::move(communicator),
                             setup.clips ? kClipping : 0);
    return made;
  }
  InitializeOptions options = options_for(setup, std::move(communicator));
  options.bucket_numel = setup.bucket_numel;
  options.marks_gradients = setup.marks;
  if (made->optimizer) {
    options.optimizer = made->optimizer.get();
    if (setup.has_schedule) {
      made->scheduler = std::make_unique<torch::optim::StepLR>(*made->optimizer, kStepSize, 0.5);
      options.lr_scheduler = made->scheduler.get();
    }
  } else {
    options.parameter_groups.resize(kGroups);
    for (int group = 0; group < kGroups; ++group) options.parameter_groups[group].parameters = groups[group];
    options.parameter_groups[1].lr = kLearningRate / 2;
    if (setup.has_schedule) options.schedule = make_schedule(setup.schedule_throws_at);
  }
  made->own.emplace(initialize(model, parsed(setup), options));
  return made;
}

void run_companion(const Program& program, const Operation& operation,
                   const std::shared_ptr<Communicator>& communicator, const std::filesystem::path& folder) {
  Program small;
  small.setup = {.place = program.setup.place,
                 .ranks = program.setup.ranks,
                 .groups = program.setup.groups,
                 .stage = program.setup.stage};
  const bool by_itself = in_processes(small.setup.place) && operation.how == 2;
  torch::nn::Module model;
  const at::Tensor weight = model.register_parameter("weight", numbers({5}, 1));
  at::Tensor sum;
  const int on_host = ranks_summed_first(small.setup);
  for (int first = 0; first < small.setup.ranks; first += on_host) {
    at::Tensor of_host = numbers({5}, operation.data + first);
    for (int rank = first + 1; rank < first + on_host; ++rank)
      of_host = of_host + numbers({5}, operation.data + rank);
    sum = sum.defined() ? sum + of_host : of_host;
  }
  const at::Tensor moved = sum * static_cast<float>(1.0 / small.setup.ranks) * kLearningRate;
  const at::Tensor expected = numbers({5}, 1) - moved;
  InitializeOptions options = options_for(small.setup, by_itself ? nullptr : communicator);
  if (operation.how == 3) {
    options.parameter_groups.resize(2);
    expect_throws([&] { initialize(model, parsed(small.setup), options); }, "is in no parameter group",
                  "initialize() with parameter groups that are empty");
    return;
  }
  Engine engine = initialize(model, parsed(small.setup), options);
  const auto train = [&] {
    engine.backward(
        (weight * numbers({5}, operation.data + rank_in_group(small.setup, *communicator))).sum());
    engine.step();
  };
  train();
  expect_same(weight.detach().clone(), expected, "the companion's parameter");
  if (operation.how != 4) return;
  engine.save_checkpoint(folder, "companion", {.save_latest = false});
  train();
  expect_same(weight.detach().clone(), expected - moved, "the companion's parameter after a save");
  engine.load_checkpoint(folder, "companion");
  expect_same(weight.detach().clone(), expected, "the companion's parameter after a load");
}

at::Tensor run_evaluator(const Program& program, const Operation& operation,
                         const std::shared_ptr<Communicator>& communicator,
                         const std::filesystem::path& folder, const std::string& tag) {
  Model model(program);
  InitializeOptions options = options_for(program.setup, communicator);
  options.bucket_numel = program.setup.bucket_numel;
  options.computes_only = true;
  Engine engine = initialize(model, parsed(program.setup), options);
  if (!tag.empty()) engine.load_checkpoint(folder, tag, {.optimizer_states = false, .counters = false});
  engine.eval();
  const at::Tensor loss =
      loss_of(model.all, operation.parameters, operation.data, rank_in_group(program.setup, *communicator));
  const char* const why = "without an optimizer";
  if (loss.requires_grad()) expect_throws([&] { engine.backward(loss); }, why, "backward() of an evaluator");
  expect_throws([&] { engine.step(); }, why, "step() of an evaluator");
  return loss.detach();
}

}  // namespace zerorun::testing
