// bench_training: trains a GPT-2 on one batch under a ds_config.json, as one rank of several, and prints the
// time of each step. benchmarks/peers/training compares it with other runtimes, which do the same in Python.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/figures.h"
#include "benchmarks/gpu/device_clock.h"
#include "benchmarks/training_options.h"
#include "comm/connect/rendezvous.h"
#include "engine/engine.h"
#include "samples/gpt2/model.h"
#include "samples/gpt2/weights.h"

namespace zerorun {
namespace {

struct Options {
  std::string config;
  std::string weights;
  samples::Gpt2Options model;
  int64_t micro_batch = 4;
  int steps = 8;
  bool on_demand = false;
  bool plain = false;
};

// Prints one line of JSON for the program that started this one.
void say(const nlohmann::json& event) {
  std::printf("%s\n", event.dump().c_str());
  std::fflush(stdout);
}

struct Training {
  Communicator& communicator;
  std::function<at::Tensor()> train_step;  // returns the loss
  bool began = false;

  // Runs `steps` steps. Reports each step's milliseconds on the slowest rank, and its mean loss over ranks. A
  // GPU runs all steps without a wait of the host in between, so there the milliseconds of all are their
  // mean.
  void run(int steps) {
    const DeviceClock clock(communicator.device());
    const bool talks = communicator.rank() == 0;
    std::vector<at::Tensor> each;
    at::Tensor times = torch::zeros({communicator.world_size(), steps}, torch::kDouble);
    clock.wait();
    const auto first = std::chrono::steady_clock::now();
    for (int step = 0; step < steps; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      const at::Tensor loss = train_step();
      times[communicator.rank()][step] = milliseconds_since(begin);
      if (!std::exchange(began, true)) {
        clock.wait();
        if (talks) say({{"event", "first step"}});
      }
      each.push_back(loss.detach());
    }
    clock.wait();
    if (clock.is_gpu()) times[communicator.rank()].fill_(milliseconds_since(first) / steps);
    at::Tensor losses = at::stack(each).to(at::kCPU, at::kDouble);
    communicator.all_reduce(times.view(-1), "step times")->wait();
    communicator.all_reduce(losses, "losses")->wait();
    if (!talks) return;
    nlohmann::json result{{"event", "steps"}};
    for (int step = 0; step < steps; ++step) {
      result["step_ms"].push_back(times.select(1, step).max().item<double>());
      result["losses"].push_back(losses[step].item<double>() / communicator.world_size());
    }
    say(result);
  }
};

// A training loop as LibTorch's documentation has it, of this rank alone.
std::function<at::Tensor()> plain_loop(samples::Gpt2 model, const std::string& config, at::Tensor tokens) {
  const nlohmann::json settings = nlohmann::json::parse(std::ifstream(config));
  const nlohmann::json& params = settings["optimizer"]["params"];
  const auto adamw = torch::optim::AdamWOptions(params["lr"]).weight_decay(params["weight_decay"]);
  auto optimizer = std::make_shared<torch::optim::AdamW>(model->parameters(), adamw);
  return [=, clipping = settings["gradient_clipping"].get<double>()]() mutable {
    const at::Tensor loss = model->loss(tokens);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), clipping);
    optimizer->step();
    optimizer->zero_grad();
    return loss;
  };
}

int run(const Options& options) {
  at::set_num_threads(1);
  auto communicator = connect();
  samples::Gpt2 model(options.model);
  if (!options.weights.empty()) samples::load_weights(*model, options.weights);
  at::Tensor tokens = random_tokens(options.model, options.micro_batch, communicator->rank());
  std::optional<Engine> engine;
  Training training{.communicator = *communicator, .train_step = {}};
  if (options.plain) {
    training.train_step = plain_loop(model, options.config, tokens);
  } else {
    InitializeOptions initialize_options;
    initialize_options.communicator = communicator;
    engine.emplace(initialize(*model, std::filesystem::path(options.config), initialize_options));
    training.train_step = [&engine, &model, tokens = tokens.to(engine->device())] {
      const at::Tensor loss = model->loss(tokens);
      engine->backward(loss);
      engine->step();
      return loss;
    };
  }
  if (!options.on_demand) {
    training.run(options.steps);
    return 0;
  }
  for (int steps = 0; std::cin >> steps;) training.run(steps);
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
  zerorun::add_model_options(app, options.model);
  app.add_option("--micro-batch", options.micro_batch)->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  app.add_flag("--on-demand", options.on_demand,
               "read from standard input, again and again, how many steps come next");
  app.add_flag("--plain", options.plain,
               "train this rank's model by itself on the CPU, without an engine, by LibTorch's own AdamW");
  return zerorun::parse_and_run(app, argc, argv, [&] { return zerorun::run(options); });
}
