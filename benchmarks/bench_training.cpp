// bench_training: trains a GPT-2 on one batch under a ds_config.json, as `zerorun` starts it, and prints what
// each step took: the side of ZeroRun in benchmarks/peers/training, whose other sides do the same in Python.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/program.h"
#include "comm/rendezvous.h"
#include "engine/engine.h"
#include "samples/gpt2/model.h"
#include "samples/gpt2/weights.h"

namespace zerorun {
namespace {

struct Options {
  std::string config;
  std::string weights;
  Gpt2Options model;
  int64_t micro_batch = 4;
  int steps = 8;
};

// For the program that has started this one.
void say(const nlohmann::json& event) {
  std::printf("%s\n", event.dump().c_str());
  std::fflush(stdout);
}

int run(const Options& options) {
  using Clock = std::chrono::steady_clock;
  auto communicator = connect();
  at::set_num_threads(1);
  const bool talks = communicator->rank() == 0;
  Gpt2 model(options.model);
  if (!options.weights.empty()) load_weights(*model, options.weights);
  InitializeOptions initialize_options;
  initialize_options.communicator = communicator;
  Engine engine = initialize(*model, std::filesystem::path(options.config), initialize_options);
  auto generator = at::detail::createCPUGenerator(communicator->rank() + 1);
  const at::Tensor tokens = torch::randint(
      0, options.model.vocab, {options.micro_batch, options.model.positions}, generator, torch::kLong);

  at::Tensor losses = torch::zeros({options.steps}, torch::kDouble);
  at::Tensor times = torch::zeros({communicator->world_size(), options.steps}, torch::kDouble);
  for (int step = 0; step < options.steps; ++step) {
    const auto begin = Clock::now();
    const at::Tensor loss = model->loss(tokens);
    engine.backward(loss);
    engine.step();
    times[communicator->rank()][step] =
        std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    if (step == 0 && talks) say({{"event", "first step"}});
    losses[step] = loss.item<double>();
  }
  communicator->all_reduce(times.view(-1), "step times")->wait();
  communicator->all_reduce(losses, "losses")->wait();
  if (!talks) return 0;
  const at::Tensor slowest = std::get<0>(times.max(0));
  const at::Tensor means = losses / communicator->world_size();
  nlohmann::json result{{"event", "end"}};
  for (int step = 0; step < options.steps; ++step) {
    result["step_ms"].push_back(slowest[step].item<double>());
    result["losses"].push_back(means[step].item<double>());
  }
  say(result);
  return 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app("Times training steps of one configuration, for comparison with other runtimes.",
               "bench_training");
  app.option_defaults()->always_capture_default();
  app.add_option("--deepspeed", options.config, "a ds_config.json")->required()->check(CLI::ExistingFile);
  app.add_option("--weights", options.weights, "a .safetensors file with the initial weights");
  app.add_option("--layers", options.model.layers)->check(CLI::PositiveNumber);
  app.add_option("--hidden", options.model.hidden)->check(CLI::PositiveNumber);
  app.add_option("--heads", options.model.heads)->check(CLI::PositiveNumber);
  app.add_option("--vocab", options.model.vocab)->check(CLI::PositiveNumber);
  app.add_option("--seq", options.model.positions)->check(CLI::PositiveNumber);
  app.add_option("--micro-batch", options.micro_batch)->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return zerorun::run_program([&] { return zerorun::run(options); });
}
