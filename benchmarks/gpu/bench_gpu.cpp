// bench_gpu: what a GPU can do and how much of it the engine reaches. One rank on one GPU. Parts: copy (the
// card's bandwidth and matrix products), kernels (the engine's, beside a copy), gpt2 (steps at stages 0 to 3
// beside a plain LibTorch loop, and their memory), operators (the host's time), offload (an update on the
// host), checkpoint (saves and loads). With --tiny it runs on the CPU, to test itself.
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "benchmarks/command_line.h"
#include "benchmarks/figures.h"
#include "benchmarks/gpu/bench.h"
#include "comm/connect/rendezvous.h"

namespace zerorun {
namespace {

const std::map<std::string, std::function<void(Bench&)>> kParts = {
    {"copy", measure_copy},           {"kernels", measure_kernels}, {"gpt2", measure_gpt2},
    {"operators", measure_operators}, {"offload", measure_offload}, {"checkpoint", measure_checkpoint}};

std::shared_ptr<Communicator> connect_alone(const BenchOptions& options) {
  Environment environment = Environment::read();
  if (environment.world_size != 1)
    throw UserError("bench_gpu measures one rank: start it alone, not as one of " +
                    std::to_string(environment.world_size));
  if (options.device == "cpu") environment.device = DeviceChoice::cpu;
  if (options.device == "cuda") environment.device = DeviceChoice::cuda;
  auto communicator = connect(environment);
  if (!communicator->device().location().is_cuda() && !options.tiny)
    throw UserError(
        "bench_gpu measures a GPU, and this rank has none: --device cuda says why; on the CPU only "
        "--tiny runs");
  return communicator;
}

// Prints what is new, and writes all figures so far: they survive if a later part does not end.
void publish(Bench& bench) {
  bench.report.print_new();
  if (!bench.options.json.empty()) bench.report.write(bench.options.json);
}

int run(const BenchOptions& options) {
  auto communicator = connect_alone(options);
  DeviceClock clock(communicator->device());
  const c10::Device device = clock.location();
  const nlohmann::json about{{"card", name_of_card(device)},
                             {"device", device.str()},
                             {"libtorch", TORCH_VERSION},
                             {"tiny", options.tiny}};
  Bench bench{options, communicator, clock, Report(about)};
  std::vector<Figure> seconds;
  for (const std::string& part : options.parts) {
    const auto begin = std::chrono::steady_clock::now();
    attempt(bench, part, "all", [&] { kParts.at(part)(bench); });
    seconds.push_back({"time", part, "whole part", "s", milliseconds_since(begin) / 1e3});
    publish(bench);
    attempt(bench, part, "its end", [&] { bench.clock.empty_cache(); });
  }
  for (Figure& figure : seconds) bench.report.add(std::move(figure));
  publish(bench);
  return bench.report.has_failures() ? 1 : 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::BenchOptions options;
  CLI::App app("Measures a GPU and training on it, with one rank.", "bench_gpu");
  app.option_defaults()->always_capture_default();
  app.add_option("parts", options.parts, "what to measure")
      ->check(CLI::IsMember(zerorun::BenchOptions().parts));
  app.add_option("--sizes", options.sizes, "models of the part gpt2")->check(CLI::IsMember({"124M", "1.3B"}));
  app.add_option("--rounds", options.rounds, "rounds in which what is compared takes turns")
      ->check(CLI::Range(3, 1000));
  app.add_option(
         "--seconds-limit", options.seconds_limit,
         "of each part, and of each model of gpt2: no further round starts after it; 3 rounds always run")
      ->check(CLI::PositiveNumber);
  app.add_option("--device", options.device)->check(CLI::IsMember({"auto", "cuda", "cpu"}));
  app.add_option("--folder", options.folder,
                 "in which the part checkpoint makes a folder and removes it; if none is given, the "
                 "system's for temporary files");
  app.add_option("--json", options.json, "a file for all figures; written after each part");
  app.add_flag("--tiny", options.tiny,
               "3 rounds of small sizes, which also run on the CPU: tests the program only");
  return zerorun::parse_and_run(app, argc, argv, [&] {
    if (options.tiny) {
      options.rounds = 3;
      at::set_num_threads(1);
    }
    return zerorun::run(options);
  });
}
