// bench_pipeline: measures which share of a window the stages of a pipeline wait, beside the formula of 1F1B,
// (p - 1) / (m + p - 1). Layers sleep instead of computing, so that a host with few cores can show it: a
// backward takes twice as long as a forward. Ranks are processes.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/figures.h"
#include "benchmarks/local_ranks.h"
#include "comm/connect/rendezvous.h"
#include "engine/engine.h"

namespace zerorun {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Options {
  int stages = 2;
  std::vector<int> micro_batches = {4, 8, 16};
  int forward = 30;  // milliseconds
  int rounds = 5;
  int zero_stage = 1;
  int64_t elements = 16384;  // of an activation
  bool json = false;
};

struct Sleep : torch::autograd::Function<Sleep> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t time) {
    context->saved_data["time"] = time;
    std::this_thread::sleep_for(milliseconds(time));
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    std::this_thread::sleep_for(milliseconds(2 * context->saved_data["time"].toInt()));
    return {gradients[0], at::Tensor()};
  }
};

struct Layers : torch::nn::Module {
  Layers(int count, int64_t elements) {
    for (int index = 0; index < count; ++index)
      weights.push_back(register_parameter("weight" + std::to_string(index), at::ones({elements})));
  }
  std::vector<at::Tensor> weights;
};

Pipeline pipeline_of(const std::shared_ptr<Layers>& model, int forward) {
  Pipeline pipeline;
  for (size_t index = 0; index < model->weights.size(); ++index) {
    pipeline.layers.push_back({.name = "layer" + std::to_string(index),
                               .tensors = {model->weights[index]},
                               .forward = [model, index, forward](const Tensors& inputs) {
                                 return Tensors{Sleep::apply(inputs[0] * model->weights[index], forward)};
                               }});
  }
  pipeline.loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); };
  return pipeline;
}

int run_rank(const Options& options) {
  const std::shared_ptr<Communicator> communicator = connect();
  nlohmann::json rows = nlohmann::json::array();
  for (const int count : options.micro_batches) {
    const auto model = std::make_shared<Layers>(options.stages, options.elements);
    InitializeOptions initialize_options;
    initialize_options.communicator = communicator;
    initialize_options.mesh = MeshSizes{.pipeline = options.stages};
    initialize_options.pipeline = pipeline_of(model, options.forward);
    const Config config = parse_config(
        R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" + std::to_string(count) +
            R"(, "optimizer": {"type": "SGD"}, "zero_optimization": {"stage": )" +
            std::to_string(options.zero_stage) + "}}",
        "bench_pipeline", {.world_size = options.stages, .mesh = initialize_options.mesh});
    Engine engine = initialize(*model, config, initialize_options);
    const std::vector<MicroBatch> window(static_cast<size_t>(count),
                                         MicroBatch{.inputs = {at::ones({options.elements})}, .labels = {}});
    engine.train_batch(window);
    std::vector<double> times;
    for (int round = 0; round < options.rounds; ++round) {
      communicator->barrier("a round")->wait();
      const auto begin = steady_clock::now();
      engine.train_batch(window);
      times.push_back(milliseconds_since(begin));
    }
    const double busy = 3.0 * options.forward * count;
    const double share = 1 - busy / median(times);
    const double formula = (options.stages - 1.0) / (count + options.stages - 1.0);
    rows.push_back({{"stages", options.stages},
                    {"micro_batches", count},
                    {"milliseconds", median(times)},
                    {"waiting", share},
                    {"formula", formula},
                    {"ratio", share / formula}});
    if (communicator->rank() == 0 && !options.json)
      std::printf("p %d  m %2d  %8.1f ms  waits %.4f  formula %.4f  ratio %.3f\n", options.stages, count,
                  median(times), share, formula, share / formula);
  }
  if (communicator->rank() == 0 && options.json) std::printf("%s\n", rows.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app("Measures the share of a window in which the stages of a pipeline wait.", "bench_pipeline");
  app.option_defaults()->always_capture_default();
  app.add_option("--stages", options.stages)->check(CLI::Range(2, 64));
  app.add_option("--micro-batches", options.micro_batches)->check(CLI::Range(1, 1024));
  app.add_option("--forward", options.forward, "milliseconds of a forward; a backward takes twice as long")
      ->check(CLI::Range(1, 10000));
  app.add_option("--elements", options.elements, "of an activation")->check(CLI::Range(1, 1 << 28));
  app.add_option("--rounds", options.rounds, "timed windows")->check(CLI::Range(1, 1000));
  app.add_option("--zero-stage", options.zero_stage)->check(CLI::Range(0, 3));
  app.add_flag("--json", options.json, "print JSON");
  return zerorun::parse_and_run(app, argc, argv, [&] {
    return zerorun::run_local_ranks(options.stages, [&] { return zerorun::run_rank(options); });
  });
}
