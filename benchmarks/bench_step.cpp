// bench_step: what communication adds to a training step. For each stage the same engine runs twice, over
// Gloo and with collectives that move nothing; all variants take turns within one run, so that a noisy
// machine is noisy for all.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/program.h"
#include "benchmarks/local_ranks.h"
#include "benchmarks/silenceable_communicator.h"
#include "comm/rendezvous.h"
#include "engine/engine.h"
#include "samples/gpt2/model.h"

namespace zerorun {
namespace {

struct Options {
  int ranks = 2;
  int rounds = 10;
  int64_t micro_batch = 4;
  Gpt2Options model{.layers = 6, .hidden = 512, .heads = 8, .vocab = 8192, .positions = 128};
  bool overlap = true;
  bool json = false;
};

struct Variant {
  int stage;
  bool communicates;
  std::shared_ptr<SilenceableCommunicator> communicator;
  Gpt2 model;
  Engine engine;
  std::vector<double> milliseconds;
};

Config make_config(const Options& options, int stage) {
  nlohmann::json text{{"train_micro_batch_size_per_gpu", options.micro_batch},
                      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}, {"weight_decay", 0.01}}}}},
                      {"gradient_clipping", 1.0},
                      {"zero_optimization", {{"stage", stage}, {"overlap_comm", options.overlap}}}};
  return parse_config(text.dump(), "bench_step", options.ranks);
}

std::vector<Variant> make_variants(const Options& options, std::shared_ptr<Communicator> communicator) {
  std::vector<Variant> variants;
  for (int stage : {0, 1, 2}) {
    for (bool communicates : {false, true}) {
      Gpt2 model(options.model);
      InitializeOptions initialize_options;
      auto own = std::make_shared<SilenceableCommunicator>(communicator);
      initialize_options.communicator = own;
      Engine engine = initialize(*model, make_config(options, stage), initialize_options);
      variants.push_back({stage, communicates, own, model, std::move(engine), {}});
    }
  }
  return variants;
}

// The step of the slowest rank, in milliseconds.
double time_step(Variant& variant, const at::Tensor& tokens, Communicator& communicator) {
  communicator.barrier("the start of a timed step")->wait();
  const auto begin = std::chrono::steady_clock::now();
  variant.engine.backward(variant.model->loss(tokens));
  variant.engine.step();
  const std::chrono::duration<double, std::milli> mine = std::chrono::steady_clock::now() - begin;
  at::Tensor times = torch::zeros({communicator.world_size()}, at::kDouble);
  times[communicator.rank()] = mine.count();
  communicator.all_reduce(times, "step times")->wait();
  return times.max().item<double>();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void report(const Options& options, const std::vector<Variant>& variants) {
  int64_t parameters = 0;
  for (const auto& parameter : variants[0].model->parameters()) parameters += parameter.numel();
  nlohmann::json result{{"parameters", parameters},         {"ranks", options.ranks},
                        {"rounds", options.rounds},         {"micro_batch", options.micro_batch},
                        {"seq", options.model.positions},   {"overlap_comm", options.overlap},
                        {"stages", nlohmann::json::array()}};
  if (!options.json) {
    std::printf(
        "step of the slowest of %d ranks, 1 thread each, medians of %d; %.1f M parameters, seq %lld, "
        "micro-batch %lld\n",
        options.ranks, options.rounds, static_cast<double>(parameters) / 1e6,
        static_cast<long long>(options.model.positions), static_cast<long long>(options.micro_batch));
    std::printf("stage   step ms   without communication ms   ratio\n");
  }
  for (size_t i = 0; i + 1 < variants.size(); i += 2) {
    const double without = median(variants[i].milliseconds);
    const double with = median(variants[i + 1].milliseconds);
    result["stages"].push_back({{"stage", variants[i].stage},
                                {"step_ms", with},
                                {"without_communication_ms", without},
                                {"ratio", with / without}});
    if (!options.json) {
      std::printf("%5d %9.1f %26.1f %7.3f\n", variants[i].stage, with, without, with / without);
    }
  }
  if (options.json) std::printf("%s\n", result.dump(2).c_str());
}

int run_rank(const Options& options) {
  at::set_num_threads(1);
  auto communicator = connect();
  std::vector<Variant> variants = make_variants(options, communicator);
  auto generator = at::detail::createCPUGenerator(communicator->rank() + 1);
  const at::Tensor tokens = torch::randint(
      0, options.model.vocab, {options.micro_batch, options.model.positions}, generator, torch::kLong);
  // The first step communicates in all variants, since it is where ranks agree on the order of buckets.
  constexpr int kWarmUp = 2;
  for (int round = -kWarmUp; round < options.rounds; ++round) {
    for (Variant& variant : variants) {
      if (round > -kWarmUp && !variant.communicates) variant.communicator->silence();
    }
    for (Variant& variant : variants) {
      const double milliseconds = time_step(variant, tokens, *communicator);
      if (round >= 0) variant.milliseconds.push_back(milliseconds);
    }
  }
  if (communicator->rank() == 0) report(options, variants);
  return 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app("Times training steps at ZeRO stages 0 to 2 beside the same steps without communication.",
               "bench_step");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 64));
  app.add_option("--rounds", options.rounds, "timed steps of each variant")->check(CLI::Range(1, 10000));
  app.add_option("--layers", options.model.layers)->check(CLI::PositiveNumber);
  app.add_option("--hidden", options.model.hidden)->check(CLI::PositiveNumber);
  app.add_option("--heads", options.model.heads)->check(CLI::PositiveNumber);
  app.add_option("--vocab", options.model.vocab)->check(CLI::PositiveNumber);
  app.add_option("--seq", options.model.positions)->check(CLI::PositiveNumber);
  app.add_option("--micro-batch", options.micro_batch)->check(CLI::PositiveNumber);
  app.add_flag("--overlap,!--no-overlap", options.overlap, "overlap_comm");
  app.add_flag("--json", options.json, "print JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return zerorun::run_program(
      [&] { return zerorun::run_local_ranks(options.ranks, [&] { return zerorun::run_rank(options); }); });
}
