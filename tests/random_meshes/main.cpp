// random_meshes [--first SEED] [--programs N] [--seconds S]
//
// Trains random networks on meshes of 2 to 8 rank-threads, whose tensor ranks split them, and compares
// losses, norms and parameters with plain LibTorch in float64 in one process, and the bits of all stages with
// each other. How far rounding may lead is measured: by a plain run in float32, and by runs in float64 whose
// initial values are changed by as much as float32 rounds. Each program is made by its seed alone; a program
// that fails is printed with its seed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <random>

#include "config/config.h"
#include "engine/engine.h"
#include "engine/gathered_parameters.h"
#include "tests/random_meshes/network.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

constexpr int kSteps = 2;
constexpr double kRate = 0.1;

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

struct Trial {
  MeshSizes mesh;
  int accumulation;
  double clipping;  // 0: none
  int64_t bucket_numel;
  bool shares_memory;
  NetworkOptions network;
};

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> parameters;
};

Trial draw(uint64_t seed) {
  std::mt19937_64 random(seed);
  constexpr MeshSizes kMeshes[] = {{2, 2, 1}, {1, 4, 1}, {2, 2, 1}, {1, 2, 1}, {2, 3, 1}, {4, 2, 1}};
  Trial trial;
  trial.mesh = kMeshes[random() % 6];
  trial.accumulation = 1 + static_cast<int>(random() % 2);
  trial.clipping = random() % 2 == 0 ? 0.7 : 0;
  trial.bucket_numel = 20 + static_cast<int64_t>(random() % 400);
  trial.shares_memory = random() % 2 == 0;
  trial.network = draw_network(random, trial.mesh.tensor);
  return trial;
}

uint64_t sample(int step, int micro, int rank) {
  return static_cast<uint64_t>(1000 * step + 100 * micro + 2 * rank + 7);
}

// `shaken`: the seed of changes of the initial values by the size of rounding; 0: none.
Result train_plain(const Trial& trial, at::ScalarType dtype, uint64_t shaken = 0) {
  Network network(trial.network);
  network.to(dtype);
  if (shaken > 0) {
    const torch::NoGradGuard no_grad;
    at::Generator generator = at::detail::createCPUGenerator(shaken);
    for (const at::Tensor& each : network.parameters())
      each.mul_(1 + 6e-8 * at::randn(each.sizes(), generator, each.options()));
  }
  std::vector<at::Tensor> trained;
  for (const at::Tensor& each : network.parameters()) {
    if (each.requires_grad()) trained.push_back(each);
  }
  torch::optim::SGD update(trained, torch::optim::SGDOptions(kRate));
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    update.zero_grad();
    double loss_of_step = 0;
    for (int micro = 0; micro < trial.accumulation; ++micro) {
      for (int rank = 0; rank < trial.mesh.data; ++rank) {
        const at::Tensor loss =
            network.loss(sample(step, micro, rank)) / (trial.mesh.data * trial.accumulation);
        loss.backward();
        loss_of_step += loss.item<double>();
      }
    }
    result.losses.push_back(loss_of_step);
    result.norms.push_back(
        torch::nn::utils::clip_grad_norm_(trained, trial.clipping > 0 ? trial.clipping : 1e9));
    update.step();
  }
  for (const auto& each : network.named_parameters()) result.parameters[each.key()] = each.value().detach();
  return result;
}

std::string config_of(const Trial& trial, int stage) {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
         std::to_string(trial.accumulation) + R"(, "gradient_clipping": )" + std::to_string(trial.clipping) +
         R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 12}})";
}

Result train_split(const Trial& trial, int stage) {
  Result of_rank_0;
  const int ranks = trial.mesh.data * trial.mesh.tensor;
  run_ranks(
      ranks,
      [&](std::shared_ptr<Communicator> communicator) {
        const bool is_first = communicator->rank() == 0;
        Network network(trial.network);
        InitializeOptions options;
        options.communicator = std::move(communicator);
        options.mesh = trial.mesh;
        options.tensor_plan = network.plan();
        options.bucket_numel = trial.bucket_numel;
        const Config config =
            parse_config(config_of(trial, stage), "trial", {.world_size = ranks, .mesh = trial.mesh});
        Engine engine = initialize(network, config, options);
        Result result;
        for (int step = 0; step < kSteps; ++step) {
          at::Tensor loss_of_step = at::zeros({1}, at::kDouble);
          for (int micro = 0; micro < trial.accumulation; ++micro) {
            const at::Tensor loss = network.loss(sample(step, micro, engine.mesh().coordinates().data));
            engine.backward(loss);
            engine.step();
            loss_of_step += loss.item<double>() / (trial.mesh.data * trial.accumulation);
          }
          engine.mesh().data().all_reduce(loss_of_step, "losses")->wait();
          result.losses.push_back(loss_of_step.item<double>());
          result.norms.push_back(engine.get_global_grad_norm());
        }
        GatheredParameters whole(engine, network.parameters());
        for (const auto& each : network.named_parameters())
          result.parameters[each.key()] = each.value().detach().clone();
        if (is_first) of_rank_0 = std::move(result);
      },
      std::chrono::seconds(30), trial.shares_memory);
  return of_rank_0;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// What is compared with: the exact results, and results of which each has other roundings.
struct Reference {
  Result exact;
  std::vector<Result> rounded;
};

Reference make_reference(const Trial& trial) {
  Reference reference{train_plain(trial, at::kDouble), {train_plain(trial, at::kFloat)}};
  for (const uint64_t shaken : {1, 2, 3})
    reference.rounded.push_back(train_plain(trial, at::kDouble, shaken));
  return reference;
}

// How far a result may be from the exact one. `off`: how far a result with other roundings is.
double allowed(double tolerance, double magnitude, const Reference& reference,
               const std::function<double(const Result& rounded)>& off) {
  double rounding = 0;
  for (const Result& rounded : reference.rounded) rounding = std::max(rounding, off(rounded));
  return tolerance * std::max(1.0, magnitude) + 30 * rounding;
}

void expect_close(const Result& found, const Reference& reference, std::vector<double> Result::*values,
                  double tolerance, const std::string& what) {
  const std::vector<double>& exact = reference.exact.*values;
  for (size_t index = 0; index < exact.size(); ++index) {
    const auto off = [&](const Result& result) { return std::abs((result.*values)[index] - exact[index]); };
    expect(off(found) <= allowed(tolerance, std::abs(exact[index]), reference, off),
           what + " of step " + std::to_string(index) + ": " + std::to_string((found.*values)[index]) +
               " instead of " + std::to_string(exact[index]));
  }
}

void run(const Trial& trial) {
  const Reference reference = make_reference(trial);
  std::vector<Result> stages;
  for (int stage = 0; stage < 4; ++stage) {
    const std::string at_stage = "stage " + std::to_string(stage) + ", ";
    stages.push_back(train_split(trial, stage));
    const Result& found = stages.back();
    expect_close(found, reference, &Result::losses, 2e-6, at_stage + "the loss");
    expect_close(found, reference, &Result::norms, 2e-5, at_stage + "the norm");
    for (const auto& [name, values] : reference.exact.parameters) {
      expect(found.parameters.at(name).sizes() == values.sizes(), at_stage + name + " is whole");
      const auto off = [&, &name = name, &values = values](const Result& result) {
        return distance(result.parameters.at(name), values);
      };
      expect(off(found) <= allowed(5e-6, values.abs().max().item<double>(), reference, off),
             at_stage + name + " differs by " + std::to_string(off(found)));
    }
    // With accumulation, stages 2 and 3 add over ranks before they add micro-steps.
    const bool adds_alike = trial.accumulation == 1 || trial.mesh.data == 1 || stage == 1 || stage == 3;
    if (stage == 0 || !adds_alike) continue;
    const Result& other = stages[trial.accumulation == 1 || trial.mesh.data == 1 ? 0 : stage - 1];
    expect(found.losses == other.losses, at_stage + "the bits of losses");
    for (const auto& [name, values] : other.parameters)
      expect(at::equal(found.parameters.at(name), values), at_stage + "the bits of " + name);
  }
}

int run_all(uint64_t first, int64_t programs, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  int64_t passed = 0, failed = 0;
  for (int64_t number = 0; number < programs && Clock::now() < end; ++number) {
    const uint64_t seed = first + static_cast<uint64_t>(number);
    const Trial trial = draw(seed);
    try {
      run(trial);
      ++passed;
    } catch (const std::exception& error) {
      ++failed;
      std::printf("seed %llu: mesh %s, accumulation %d, clipping %g, buckets of %lld%s; %s\n  %s\n",
                  static_cast<unsigned long long>(seed), describe(trial.mesh).c_str(), trial.accumulation,
                  trial.clipping, static_cast<long long>(trial.bucket_numel),
                  trial.shares_memory ? ", shared memory" : "", describe(trial.network).c_str(),
                  error.what());
    }
  }
  std::printf("%lld passed, %lld failed\n", static_cast<long long>(passed), static_cast<long long>(failed));
  return failed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace zerorun::testing

int main(int argc, char** argv) {
  CLI::App app{"trains random networks on meshes whose tensor ranks split them"};
  uint64_t first = 1;
  int64_t programs = 100;
  double seconds = 1e9;
  app.add_option("--first", first, "seed of the first program");
  app.add_option("--programs", programs, "number of programs");
  app.add_option("--seconds", seconds, "begin no program after this time");
  CLI11_PARSE(app, argc, argv);
  return zerorun::testing::run_all(first, programs, seconds);
}
