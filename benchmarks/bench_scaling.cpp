// bench_scaling: measures weak scaling on one machine, also with more ranks than cores. Each rank trains the
// same GPT-2 on its own batch. Compares the elements that ranks send and the bytes that they store with the
// formulas. Step times mean little if ranks share cores.
#include <sys/mman.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "benchmarks/command_line.h"
#include "benchmarks/local_ranks.h"
#include "benchmarks/memory_picture.h"
#include "benchmarks/training_options.h"
#include "comm/connect/rendezvous.h"
#include "engine/engine.h"
#include "samples/gpt2/model.h"

namespace zerorun {
namespace {

struct Options {
  std::vector<int> ranks{1, 2, 4, 8};
  std::vector<int> stages{0, 1, 2, 3};
  int steps = 4;
  int accumulation = 1;
  samples::Gpt2Options model{.layers = 6, .hidden = 512, .heads = 8, .vocab = 8192, .positions = 128};
  bool json = false;
  std::string picture;
};

// The results of rank 0, in memory that it shares with the parent process.
struct Row {
  double parameters;
  double step_ms;
  double reduce_scattered;  // elements that a rank sends in reduce-scatters, per step
  double all_gathered;      // elements that a rank sends in all-gathers, per step
  double parameter_bytes;
  double gradient_bytes;
  double optimizer_bytes;
  double formula_bytes;
  double pss;  // see pss(); the mean over ranks

  double state_bytes() const { return parameter_bytes + gradient_bytes + optimizer_bytes; }
};

Config make_config(const Options& options, int stage, int world_size) {
  const nlohmann::json text{{"train_micro_batch_size_per_gpu", 1},
                            {"gradient_accumulation_steps", options.accumulation},
                            {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}}}}},
                            {"gradient_clipping", 1.0},
                            {"zero_optimization", {{"stage", stage}, {"overlap_comm", true}}}};
  return parse_config(text.dump(), "bench_scaling", world_size);
}

// Proportional set size in bytes: each process is charged its share of a shared page.
double pss() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word == "Pss:" && file >> word) return std::stod(word) * 1024;
  }
  throw Error("no Pss in /proc/self/smaps_rollup");
}

int run_rank(const Options& options, int stage, Row& row) {
  at::set_num_threads(1);
  auto communicator = connect();
  const int ranks = communicator->world_size();
  samples::Gpt2 model(options.model);
  InitializeOptions initialize_options;
  initialize_options.communicator = communicator;
  Engine engine = initialize(*model, make_config(options, stage, ranks), initialize_options);
  const at::Tensor tokens = random_tokens(options.model, 1, communicator->rank());
  auto step = [&] {
    for (int micro_step = 0; micro_step < options.accumulation; ++micro_step) {
      engine.backward(model->loss(tokens));
      engine.step();
    }
  };
  step();
  communicator->barrier("the start of timed steps")->wait();
  communicator->volume().reset();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < options.steps; ++i) step();
  const Volume volume = communicator->volume();
  communicator->barrier("the end of timed steps")->wait();
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
  at::Tensor memory = torch::full({1}, pss(), torch::kDouble);
  communicator->all_reduce(memory, "memory")->wait();
  if (communicator->rank() != 0) return 0;
  double parameters = 0;
  for (const at::Tensor& parameter : model->parameters())
    parameters += static_cast<double>(parameter.numel());
  const BytesByCategory bytes = engine.bytes_by_category();
  row = {.parameters = parameters,
         .step_ms = elapsed.count() / options.steps,
         .reduce_scattered = volume.elements(Collective::reduce_scatter) / options.steps,
         .all_gathered = volume.elements(Collective::all_gather) / options.steps,
         .parameter_bytes = static_cast<double>(bytes.parameters),
         .gradient_bytes = static_cast<double>(bytes.gradients),
         .optimizer_bytes = static_cast<double>(bytes.master + bytes.moments),
         .formula_bytes = engine.formula_bytes(),
         .pss = memory.item<double>() / ranks};
  return 0;
}

// ZeRO's formula for the elements that a rank sends in a step. It holds if ranks share memory: otherwise
// stage 3 also gathers parameters for forward and backward.
double formula_elements(const Options& options, int stage, int ranks, double parameters) {
  const double reductions = stage >= 2 ? options.accumulation : 1;
  return (reductions + 1) * parameters * (ranks - 1) / ranks;
}

int run(const Options& options) {
  void* memory = mmap(nullptr, sizeof(Row), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("no memory to share with ranks");
  Row& row = *new (memory) Row{};
  nlohmann::json rows = nlohmann::json::array();
  std::vector<StageMemory> stages;  // one per stage, at the last number of ranks
  double parameters = 0;
  if (!options.json) {
    std::printf(
        "stage ranks   step ms   sent elements / formula   model-state MB / formula   PSS of a rank MB\n");
    std::fflush(stdout);
  }
  for (const int stage : options.stages) {
    for (const int ranks : options.ranks) {
      const int code = run_local_ranks(ranks, [&] { return run_rank(options, stage, row); });
      if (code != 0) return code;
      parameters = row.parameters;
      if (ranks == options.ranks.back())
        stages.push_back({stage, row.parameter_bytes, row.gradient_bytes, row.optimizer_bytes});
      const double sent = row.reduce_scattered + row.all_gathered;
      const double formula = formula_elements(options, stage, ranks, row.parameters);
      rows.push_back({{"stage", stage},
                      {"ranks", ranks},
                      {"step_ms", row.step_ms},
                      {"sent_elements", sent},
                      {"formula_elements", formula},
                      {"state_bytes", row.state_bytes()},
                      {"formula_bytes", row.formula_bytes},
                      {"pss_bytes", row.pss}});
      if (options.json) continue;
      std::printf("%5d %5d %9.1f %14.0f / %-10.4g %13.1f / %-9.1f %17.1f\n", stage, ranks, row.step_ms, sent,
                  formula, row.state_bytes() / 1e6, row.formula_bytes / 1e6, row.pss / 1e6);
      std::fflush(stdout);
    }
  }
  if (options.json) std::printf("%s\n", rows.dump(2).c_str());
  if (options.picture.empty()) return 0;
  const std::string title = "Model states on each of " + std::to_string(options.ranks.back()) +
                            " ranks: GPT-2 with " + std::to_string(std::llround(parameters / 1e6)) +
                            " million parameters, fp32, AdamW";
  std::ofstream file(options.picture);
  if (!(file << memory_picture(stages, title)).flush()) throw UserError("cannot write " + options.picture);
  return 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app("What ranks send and keep, from one to more than there are cores.", "bench_scaling");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", options.ranks, "numbers of ranks")->check(CLI::Range(1, 64));
  app.add_option("--stages", options.stages)->check(CLI::Range(0, 3));
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  app.add_option("--accumulation", options.accumulation, "micro-steps of a step")->check(CLI::PositiveNumber);
  zerorun::add_model_options(app, options.model);
  app.add_option("--picture", options.picture, "draw what a rank keeps at each stage")->type_name("FILE.svg");
  app.add_flag("--json", options.json, "print JSON");
  return zerorun::parse_and_run(app, argc, argv, [&] { return zerorun::run(options); });
}
