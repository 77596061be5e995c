// Faults that are planted in one of two runs, of which the other differs in stage and buckets: their logs
// must name the step, and the parameter or the rank.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "monitor/run_comparison.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

constexpr int kRanks = 2;
constexpr int kSteps = 6;

// A training of Net at one of its points.
struct Training {
  Engine& engine;
  Net& net;
  int rank;
  int step;  // that is next or running: 1 for the first
};

struct Program {
  std::string settings = R"("gradient_clipping": 1.0)";
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
  uint64_t seed = 100;
  std::function<void(Net&)> before_initialize = [](Net&) {};
  std::function<void(Training)> before_forward = [](const Training&) {};
  std::function<at::Tensor(Training)> input = [](const Training& at) { return sample(at.step, 0, at.rank); };
  std::function<at::Tensor(Training, at::Tensor)> loss = [](const Training&, at::Tensor loss) {
    return loss;
  };
  std::function<void(Training)> before_step = [](const Training&) {};
  std::function<void(Training)> after_step = [](const Training&) {};
};

void run(const Program& program, int stage, std::optional<int64_t> bucket_numel, const fs::path& log) {
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 1, "optimizer": )" + program.optimizer + ", " + program.settings +
      R"(, "zero_optimization": {"stage": )" + std::to_string(stage) +
      R"(, "stage3_param_persistence_threshold": 0}, "zerorun": {"run_log": {"path": ")" + log.string() +
      R"(", "hashes": true}}})";
  run_ranks(kRanks, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    fill(*net, program.seed);
    program.before_initialize(net);
    InitializeOptions options;
    options.bucket_numel = bucket_numel;
    Engine engine = make_engine(*net, config, communicator, options);
    Training at{engine, net, communicator->rank(), 1};
    for (; at.step <= kSteps; ++at.step) {
      program.before_forward(at);
      engine.backward(program.loss(at, net(program.input(at), true).square().mean()));
      program.before_step(at);
      engine.step();
      program.after_step(at);
    }
  });
}

void overwrite(const Training& at, const at::Tensor& parameter,
               const std::function<void(at::Tensor&)>& change) {
  const c10::NoGradGuard no_grad;
  GatheredParameters whole(at.engine, {parameter}, /*modifier_rank=*/0);
  at::Tensor values = parameter.detach();
  if (at.rank == 0) change(values);
}

void change_state(const Training& at, const at::Tensor& parameter, const std::string& name,
                  const std::function<at::Tensor(at::Tensor)>& change) {
  ParameterStates states(at.engine);
  states.write(parameter, name, change(states.read(parameter, name)));
}

void change_gradient(const Training& at, const at::Tensor& parameter,
                     const std::function<at::Tensor(at::Tensor)>& change) {
  ParameterStates states(at.engine);
  states.write_gradient(parameter, change(states.read_gradient(parameter)));
}

// Of two backwards in a step the second one's gradients are late.
void backward_twice(const Training& at, bool drops) {
  const at::Tensor hidden = at.net->first(sample(at.step, 5, at.rank)).detach();
  (at.net->branch(hidden).square().mean() * (drops ? 0 : 1)).backward();
}

// Flips the last bit of the mantissa.
void flip_bit(at::Tensor& values, int64_t index) {
  uint32_t bits = 0;
  float* value = values.mutable_data_ptr<float>() + index;
  std::memcpy(&bits, value, sizeof bits);
  bits ^= 1;
  std::memcpy(value, &bits, sizeof bits);
}

struct Fault {
  std::string name;
  Program program;
  int64_t step;
  Parting what;
  std::string parameter;
  std::optional<int> rank = {};
  std::string difference = {};  // of the settings, that is listed too
};

const std::string kSgd = R"({"type": "SGD", "params": {"lr": 0.1}})";
constexpr const char* kFirst = "first.weight";  // of the trained parameters

std::vector<Fault> faults_of_gradients() {
  std::vector<Fault> faults;
  const auto add = [&](const char* name, int64_t step, const char* parameter,
                       std::function<void(Training)> act) {
    Program program;
    program.before_step = std::move(act);
    faults.push_back({name, program, step, Parting::gradients, parameter});
  };
  add("a gradient scaled", 4, "branch.weight", [](const Training& at) {
    if (at.step == 4) change_gradient(at, at.net->branch->weight, [](at::Tensor g) { return g * 1.0001; });
  });
  add("a gradient dropped", 3, "last.bias", [](const Training& at) {
    if (at.step == 3) change_gradient(at, at.net->last->bias, [](at::Tensor g) { return g * 0; });
  });
  add("a gradient counted twice", 2, "branch.bias", [](const Training& at) {
    if (at.step == 2) change_gradient(at, at.net->branch->bias, [](at::Tensor g) { return g + g; });
  });
  add("one bit of a gradient", 5, "first.bias", [](const Training& at) {
    if (at.step != 5) return;
    change_gradient(at, at.net->first->bias, [](at::Tensor g) {
      flip_bit(g, 3);
      return g;
    });
  });
  add("two elements of a gradient swapped", 3, "last.weight", [](const Training& at) {
    if (at.step != 3) return;
    change_gradient(at, at.net->last->weight,
                    [](at::Tensor g) { return g.flatten().roll(1).view(g.sizes()).contiguous(); });
  });

  Program hook;
  hook.before_forward = [](const Training& at) {
    if (at.step != 4 || at.rank != 1) return;
    at.net->last->weight.register_hook([](const at::Tensor& g) { return g * 0.5; });
  };
  faults.push_back({"a hook that scales on one rank", hook, 4, Parting::gradients, "last.weight"});

  Program late;
  late.before_step = [](const Training& at) { backward_twice(at, /*drops=*/at.step == 4 && at.rank == 0); };
  faults.push_back({"a late gradient dropped", late, 4, Parting::gradients, "branch.weight"});
  return faults;
}

std::vector<Fault> faults_of_the_optimizer() {
  std::vector<Fault> faults;
  const auto add = [&](const char* name, int64_t step, Parting what, const char* parameter,
                       std::function<void(Training)> before_forward) {
    Program program;
    program.before_forward = std::move(before_forward);
    faults.push_back({name, program, step, what, parameter});
  };
  auto stale = std::make_shared<at::Tensor>();
  add("a stale moment", 4, Parting::values, "last.weight", [stale](const Training& at) {
    const at::Tensor& parameter = at.net->last->weight;
    if (at.step != 3 && at.step != 4) return;
    const at::Tensor now = ParameterStates(at.engine).read(parameter, "exp_avg");
    if (at.step == 3 && at.rank == 0) *stale = now;
    at.engine.communicator().barrier("the stale moment is there")->wait();
    if (at.step == 4) ParameterStates(at.engine).write(parameter, "exp_avg", *stale);
  });
  add("a moment lost", 5, Parting::values, "branch.bias", [](const Training& at) {
    if (at.step == 5)
      change_state(at, at.net->branch->bias, "exp_avg_sq", [](at::Tensor moment) { return moment * 0.99; });
  });
  add("a wrong learning rate", 4, Parting::learning_rate, kFirst,
      [](const Training& at) { at.engine.set_lr(0, at.step == 4 ? 0.011 : 0.01); });
  add("an update that does nothing", 2, Parting::learning_rate, kFirst,
      [](const Training& at) { at.engine.set_lr(0, at.step == 2 ? 0 : 0.01); });
  add("wrong betas", 3, Parting::values, kFirst, [](const Training& at) {
    at.engine.set_betas(0, {0.9, at.step == 3 ? 0.99 : 0.999});
  });

  Program decay;
  decay.optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.2}})";
  faults.push_back(
      {"another weight decay", decay, 1, Parting::values, kFirst, {}, "optimizer.params.weight_decay"});
  Program clipping;
  clipping.settings = R"("gradient_clipping": 0.0001)";
  clipping.optimizer = kSgd;  // Adam divides the factor out again
  faults.push_back({"another clipping", clipping, 1, Parting::values, kFirst, {}, "gradient_clipping"});
  return faults;
}

std::vector<Fault> faults_of_values() {
  std::vector<Fault> faults;
  Program seed;
  seed.seed = 7;
  faults.push_back({"another seed", seed, 0, Parting::start, kFirst});
  Program frozen;
  frozen.before_initialize = [](Net& net) { net->scale.fill_(2.5); };
  faults.push_back({"another frozen value", frozen, 0, Parting::start, "scale"});
  Program one;
  one.before_initialize = [](Net& net) {
    const c10::NoGradGuard no_grad;
    net->branch->weight[3][4] += 1e-6;
  };
  faults.push_back({"one initial value", one, 0, Parting::start, "branch.weight"});

  Program bit;
  bit.before_forward = [](const Training& at) {
    if (at.step == 4) overwrite(at, at.net->last->weight, [](at::Tensor& values) { flip_bit(values, 5); });
  };
  faults.push_back({"a bit flipped in a value", bit, 4, Parting::written, "last.weight"});
  auto old = std::make_shared<at::Tensor>();
  Program undone;
  undone.before_forward = [old](const Training& at) {
    if (at.step == 3) overwrite(at, at.net->first->bias, [&](at::Tensor& values) { *old = values.clone(); });
    if (at.step == 4) overwrite(at, at.net->first->bias, [&](at::Tensor& values) { values.copy_(*old); });
  };
  faults.push_back({"an update of a parameter undone", undone, 4, Parting::written, "first.bias"});
  return faults;
}

std::vector<Fault> faults_of_data() {
  std::vector<Fault> faults;
  Program swapped;
  swapped.input = [](const Training& at) {
    return sample(at.step == 3 && at.rank == 1 ? at.step + 1 : at.step, 0, at.rank);
  };
  faults.push_back({"another micro-batch on one rank", swapped, 3, Parting::loss, kFirst, 1});
  Program exchanged;
  exchanged.input = [](const Training& at) {
    return sample(at.step, 0, at.step == 5 ? 1 - at.rank : at.rank);
  };
  faults.push_back({"the ranks' micro-batches exchanged", exchanged, 5, Parting::loss, ""});
  Program scaled;
  scaled.loss = [](const Training& at, at::Tensor loss) {
    return at.step == 2 && at.rank == 0 ? loss * 2 : loss;
  };
  faults.push_back({"a loss scaled on one rank", scaled, 2, Parting::loss, kFirst, 0});
  Program noise;
  noise.input = [](const Training& at) {
    const at::Tensor input = sample(at.step, 0, at.rank);
    return at.step >= 4 && at.rank == 1 ? input * (1 + 1e-6) : input;
  };
  faults.push_back({"noise in the data of one rank", noise, 4, Parting::loss, kFirst, 1});
  Program infinite;
  infinite.before_forward = [](const Training& at) {
    if (at.step != 3 || at.rank != 0) return;
    at.net->branch->bias.register_hook(
        [](const at::Tensor& g) { return g * std::numeric_limits<float>::infinity(); });
  };
  faults.push_back(
      {"an infinite gradient, and a skipped step", infinite, 3, Parting::gradients, "branch.bias"});
  return faults;
}

// The same program without the fault: what is drawn or done besides it is the same.
Program without_fault(const Fault& fault) {
  Program program;
  if (fault.program.optimizer == kSgd) program.optimizer = kSgd;
  if (fault.name == "a late gradient dropped") {
    program.before_step = [](const Training& at) { backward_twice(at, /*drops=*/false); };
  }
  return program;
}

}  // namespace

TEST_CASE("Planted faults are found with their step, and parameter or rank") {
  const TemporaryFolder folder;
  std::vector<Fault> faults = faults_of_gradients();
  for (auto more : {faults_of_the_optimizer(), faults_of_values(), faults_of_data()})
    faults.insert(faults.end(), more.begin(), more.end());
  REQUIRE(faults.size() >= 20);
  int found = 0, stage = 0;
  for (const Fault& fault : faults) {
    CAPTURE(fault.name, stage);
    const fs::path good = folder / ("good of " + fault.name), bad = folder / fault.name;
    run(without_fault(fault), (stage + 1) % 4, {}, good);
    run(fault.program, stage, stage % 2 == 0 ? std::optional<int64_t>(20) : std::nullopt, bad);
    stage = (stage + 1) % 4;
    const RunComparison comparison = compare_runs(good, bad);
    INFO(to_text(comparison, "good", "bad"));
    if (!comparison.parting) {
      FAIL_CHECK("not found");
      continue;
    }
    const PartingStep& parting = *comparison.parting;
    CHECK(parting.step == fault.step);
    CHECK(parting.what == fault.what);
    CHECK(parting.rank == fault.rank);
    if (!fault.parameter.empty()) CHECK(parting.parameter == fault.parameter);
    const auto lists = [&](const std::string& difference) {
      return difference.starts_with(fault.difference + ":");
    };
    CHECK(std::ranges::any_of(comparison.differences, lists) == !fault.difference.empty());
    const bool right = parting.step == fault.step && parting.what == fault.what &&
                       parting.rank == fault.rank &&
                       (fault.parameter.empty() || parting.parameter == fault.parameter);
    if (right) ++found;
  }
  CHECK(found == static_cast<int>(faults.size()));
}

TEST_CASE("The same program at another stage and with other buckets does not part") {
  const TemporaryFolder folder;
  for (int stage = 0; stage < 4; ++stage)
    run({}, stage, stage % 2 == 0 ? std::optional<int64_t>(20) : std::nullopt,
        folder / std::to_string(stage));
  for (int stage = 1; stage < 4; ++stage) {
    const RunComparison comparison = compare_runs(folder / "0", folder / std::to_string(stage));
    INFO(to_text(comparison, "stage 0", std::to_string(stage)));
    CHECK((!comparison.parting && comparison.has_hashes && comparison.steps == kSteps));
  }
}

}  // namespace zerorun::testing
