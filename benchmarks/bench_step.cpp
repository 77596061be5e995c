// bench_step: measures how much communication adds to a training step. Each stage runs with the communicator
// of connect() and with collectives that move nothing. Stages 1 and 2 run once more with a wait for the
// updated parameters after step(). All variants take turns within one run, so that noise of the machine
// affects all of them. At the end it measures the time that interception adds to an operator on a parameter.
// With --backward it compares loss.backward() with engine.backward() instead: time, elements sent, operators
// run. With --watched it shows what it costs to watch a run (benchmarks/step_watched.h). With --mesh it
// compares tensor ranks with data ranks (benchmarks/step_on_mesh.h).
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/figures.h"
#include "benchmarks/local_ranks.h"
#include "benchmarks/step_on_mesh.h"
#include "benchmarks/step_variants.h"
#include "benchmarks/step_watched.h"
#include "comm/connect/rendezvous.h"
#include "engine/gathered_parameters.h"

namespace zerorun {
namespace {

struct Options : StepOptions {
  bool backward = false;
  bool watched = false;
  MeshSizes mesh;
};

// A row of the printed table: a stage and its settings.
struct Setting {
  std::string name;
  nlohmann::json zero;
  bool waits_in_step = false;
};

// Stage 3 runs twice: with limits that let all parameters stay gathered from forward to backward, and with
// limits that let a quarter of them stay.
std::vector<Setting> settings(int64_t parameters) {
  return {{"0", {{"stage", 0}}},
          {"1", {{"stage", 1}}},
          {"1, waiting in step()", {{"stage", 1}}, true},
          {"2", {{"stage", 2}}},
          {"2, waiting in step()", {{"stage", 2}}, true},
          {"3", {{"stage", 3}}},
          {"3, a quarter live",
           {{"stage", 3},
            {"stage3_max_live_parameters", parameters / 4},
            {"stage3_prefetch_bucket_size", parameters / 8}}}};
}

int64_t count_parameters(const Options& options) {
  int64_t parameters = 0;
  for (const auto& parameter : samples::Gpt2(options.model)->parameters()) parameters += parameter.numel();
  return parameters;
}

Variant make_variant(const Options& options, const Setting& setting, bool communicates,
                     std::shared_ptr<Communicator> communicator) {
  nlohmann::json zero = setting.zero;
  zero["overlap_comm"] = options.overlap;
  Variant variant =
      make_variant(options, options.config(std::move(zero)), communicates, std::move(communicator));
  variant.waits_in_step = setting.waits_in_step;
  return variant;
}

// Returns by how many nanoseconds a small operator is slower if one of its arguments is a gathered parameter.
double interception_ns(Variant& variant) {
  torch::NoGradGuard no_grad;
  const at::Tensor parameter = variant.model->parameters().back();
  const at::Tensor other = torch::ones_like(parameter);
  GatheredParameters scope(variant.engine, {parameter});
  auto time = [&](const at::Tensor& tensor) {
    constexpr int kCalls = 20'000;
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < kCalls; ++call) at::add(tensor, other);
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
           kCalls;
  };
  std::vector<double> differences;
  for (int round = 0; round < 15; ++round) {
    const double plain = time(other);
    differences.push_back(time(parameter) - plain);
  }
  return median(std::move(differences));
}

std::string columns_of(double instructions, double without) {
  if (!std::isfinite(instructions)) return "    not counted on this machine";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%8.0f %10.0f %8.3f", instructions * 1e-6, without * 1e-6,
                instructions / without);
  return text.data();
}

void report(const Options& options, const std::vector<Setting>& rows, std::vector<Variant>& variants,
            double operator_ns) {
  const int64_t parameters = count_parameters(options);
  nlohmann::json result{{"parameters", parameters},         {"ranks", options.ranks},
                        {"rounds", options.rounds},         {"micro_batch", options.micro_batch},
                        {"seq", options.model.positions},   {"overlap_comm", options.overlap},
                        {"precision", options.precision},   {"interception_ns", operator_ns},
                        {"stages", nlohmann::json::array()}};
  if (!options.json) {
    std::printf(
        "step of the slowest of %d ranks, 1 thread each, medians of %d; %.1f M parameters, seq %lld, "
        "micro-batch %lld, %s\n",
        options.ranks, options.rounds, static_cast<double>(parameters) / 1e6,
        static_cast<long long>(options.model.positions), static_cast<long long>(options.micro_batch),
        options.precision.c_str());
    std::printf(
        "                       slowest rank              all ranks, CPU time     all ranks, 10^6 "
        "instructions\n"
        "stage                  step ms  silent  ratio   CPU ms  silent  ratio    step      silent    ratio  "
        " "
        "gathers ready / waited for\n");
  }
  for (size_t row = 0; row < rows.size(); ++row) {
    const Variant& silent = variants[2 * row];
    const Variant& talking = variants[2 * row + 1];
    const double without = median(silent.milliseconds);
    const double with = median(talking.milliseconds);
    const double cpu_without = median(silent.cpu_milliseconds);
    const double cpu_with = median(talking.cpu_milliseconds);
    const double instructions_without = median(silent.instructions);
    const double instructions_with = median(talking.instructions);
    const ResidencyReport gathers = talking.engine.residency();
    result["stages"].push_back({{"stage", rows[row].name},
                                {"step_ms", with},
                                {"without_communication_ms", without},
                                {"ratio", with / without},
                                {"cpu_ms", cpu_with},
                                {"cpu_without_communication_ms", cpu_without},
                                {"instructions", instructions_with},  // null if not counted
                                {"instructions_without_communication", instructions_without},
                                {"gathers_ready", gathers.ready},
                                {"gathers_waited", gathers.waited},
                                {"gathers_waited_ms", gathers.waited_ms}});
    if (options.json) continue;
    std::printf("%-22s %7.1f %7.1f %6.3f %8.1f %7.1f %6.3f %s %15lld / %lld\n", rows[row].name.c_str(), with,
                without, with / without, cpu_with, cpu_without, cpu_with / cpu_without,
                columns_of(instructions_with, instructions_without).c_str(),
                static_cast<long long>(gathers.ready), static_cast<long long>(gathers.waited));
  }
  if (options.json) {
    std::printf("%s\n", result.dump(2).c_str());
  } else {
    std::printf("an operator on a parameter takes %.0f ns more than on another tensor\n", operator_ns);
  }
}

at::Tensor tokens_of(const Options& options, Communicator& communicator) {
  return random_tokens(options.model, options.micro_batch, communicator.rank())
      .to(communicator.device().location());
}

std::atomic<int64_t> operators_run = 0;
std::unique_ptr<at::ObserverContext> count_operator(const at::RecordFunction& /*function*/) {
  ++operators_run;
  return nullptr;
}

// The elements that this rank sends in one step, by collective, and the number of operators that it runs.
struct StepCounts {
  std::array<double, kCollectiveKinds> sent{};
  int64_t operators = 0;
  bool operator==(const StepCounts&) const = default;
};

StepCounts count_step(Variant& variant, const at::Tensor& tokens) {
  variant.communicator->volume().reset();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(count_operator).scopes({at::RecordScope::FUNCTION}));
  operators_run = 0;
  train_step(variant, tokens);
  await_updates(variant);
  at::removeCallback(handle);
  StepCounts counts{.operators = operators_run};
  for (size_t kind = 0; kind < kCollectiveKinds; ++kind)
    counts.sent[kind] = variant.communicator->volume().elements(static_cast<Collective>(kind));
  return counts;
}

// Three variants of each stage take turns: engine.backward(), a second engine.backward() to show the noise,
// and loss.backward().
int run_backwards(const Options& options) {
  const WorkMeter meter;
  at::set_num_threads(1);
  auto communicator = connect();
  const at::Tensor tokens = tokens_of(options, *communicator);
  nlohmann::json stages = nlohmann::json::array();
  for (const Setting& setting : settings(count_parameters(options))) {
    if (setting.waits_in_step) continue;
    std::vector<Variant> variants;
    for (const bool plain : {false, false, true}) {
      variants.push_back(make_variant(options, setting, true, communicator));
      variants.back().plain = plain;
    }
    constexpr int kWarmUp = 2;
    for (int round = -kWarmUp; round < options.rounds; ++round) {
      for (Variant& variant : variants) {
        const StepCost cost = time_step(variant, tokens, *communicator, meter);
        if (round >= 0) variant.note(cost);
      }
    }
    const StepCounts own = count_step(variants[0], tokens), plain = count_step(variants[2], tokens);
    const double step = median(variants[0].milliseconds), cpu = median(variants[0].cpu_milliseconds);
    stages.push_back({{"stage", setting.name},
                      {"engine_backward_ms", step},
                      {"again", median(variants[1].milliseconds) / step},
                      {"loss_backward", median(variants[2].milliseconds) / step},
                      {"again_cpu", median(variants[1].cpu_milliseconds) / cpu},
                      {"loss_backward_cpu", median(variants[2].cpu_milliseconds) / cpu},
                      {"sent", own.sent},
                      {"sent_by_loss_backward", plain.sent},
                      {"operators", own.operators},
                      {"operators_of_loss_backward", plain.operators}});
  }
  if (communicator->rank() != 0) return 0;
  if (options.json) {
    std::printf("%s\n", stages.dump(2).c_str());
    return 0;
  }
  std::printf(
      "medians of %d turns; engine.backward() again and loss.backward(), beside engine.backward()\n"
      "stage                  step ms   again  loss.backward   CPU: again  loss.backward   operators  sent\n",
      options.rounds);
  for (const nlohmann::json& stage : stages) {
    std::printf("%-22s %7.1f  %6.3f  %13.3f  %11.3f  %13.3f   %s  %s\n",
                stage["stage"].get<std::string>().c_str(), stage["engine_backward_ms"].get<double>(),
                stage["again"].get<double>(), stage["loss_backward"].get<double>(),
                stage["again_cpu"].get<double>(), stage["loss_backward_cpu"].get<double>(),
                stage["operators"] == stage["operators_of_loss_backward"] ? "the same" : " differ ",
                stage["sent"] == stage["sent_by_loss_backward"] ? "the same" : "differs");
  }
  return 0;
}

int run_rank(const Options& options) {
  if (options.backward) return run_backwards(options);
  if (options.watched) return run_step_watched(options);
  if (options.mesh.tensor > 1) return run_step_on_mesh(options, options.mesh);
  const WorkMeter meter;
  at::set_num_threads(1);
  auto communicator = connect();
  const std::vector<Setting> rows = settings(count_parameters(options));
  std::vector<Variant> variants;
  for (const Setting& setting : rows) {
    for (bool communicates : {false, true}) {
      variants.push_back(make_variant(options, setting, communicates, communicator));
    }
  }
  const at::Tensor tokens = tokens_of(options, *communicator);
  // In the first warm-up round all variants communicate, because ranks agree on the order of buckets in that
  // round.
  constexpr int kWarmUp = 2;
  for (int round = -kWarmUp; round < options.rounds; ++round) {
    for (Variant& variant : variants) {
      if (round > -kWarmUp && !variant.communicates) variant.communicator->silence();
    }
    for (Variant& variant : variants) {
      const StepCost cost = time_step(variant, tokens, *communicator, meter);
      if (round >= 0) variant.note(cost);
    }
  }
  const double operator_ns = interception_ns(variants.back());
  if (communicator->rank() == 0) report(options, rows, variants, operator_ns);
  return 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app("Times training steps at ZeRO stages 0 to 3 beside the same steps without communication.",
               "bench_step");
  app.option_defaults()->always_capture_default();
  options.add_to(app);
  app.add_option("--rounds", options.rounds, "timed steps of each variant")->check(CLI::Range(1, 10000));
  app.add_flag("--overlap,!--no-overlap", options.overlap, "overlap_comm");
  app.add_flag("--backward", options.backward, "compare loss.backward() with engine.backward()");
  app.add_flag(
      "--watched", options.watched,
      "compare stage 3 with a timeline, a run log, monitors and the log of collectives, and without");
  std::string mesh;
  app.add_option(
         "--mesh", mesh,
         "a mesh such as data=1,tensor=2, whose product is --ranks: compare its steps with those of data "
         "ranks alone on the same samples, and with those without all-reduces of tensor ranks")
      ->excludes("--backward");
  return zerorun::parse_and_run(app, argc, argv, [&] {
    if (!mesh.empty()) options.mesh = zerorun::parse_mesh(mesh, options.ranks);
    return zerorun::run_local_ranks(options.ranks, [&] { return zerorun::run_rank(options); });
  });
}
