// The parts gpt2, operators and offload of bench_gpu: training steps with one rank, beside the plain loop.
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/figures.h"
#include "benchmarks/gpu/bench.h"
#include "benchmarks/gpu/training.h"
#include "engine/gathered_parameters.h"

namespace zerorun {
namespace {

// Before anything is timed: the first iteration is recorded, the second plans, the third repeats.
constexpr int kWarmUpSteps = 3;  // the report's "third loss" is the last one's

void repeat(int times, const Body& body) {
  for (int i = 0; i < times; ++i) body();
}

nlohmann::json stage_config(int stage) {
  return {{"stage", stage}};
}

// In a narrow model all parameters are small. At stage 3 they are partitioned all the same.
nlohmann::json narrow_stage_config(int stage) {
  nlohmann::json zero = stage_config(stage);
  if (stage == 3) zero["stage3_param_persistence_threshold"] = 0;
  return zero;
}

// Measures one model of the part gpt2.
class SizeMeasurement {
 public:
  SizeMeasurement(Bench& bench, const std::string& name)
      : bench_(bench),
        size_(size_of(name, bench.options.tiny)),
        part_("gpt2 " + name),
        memory_part_(part_ + ", memory"),
        limit_(bench.options.seconds_limit) {}

  void measure();

 private:
  static constexpr int kStages = 4;

  // The seconds for the rounds of one case. The rest is for building models and warming up.
  double share_of_time() const { return bench_.options.seconds_limit / (2 * kStages); }
  void add(const std::string& subject, const std::string& name, const std::string& unit, double value,
           Goal goal = {}) {
    bench_.report.add({part_, subject, name, unit, value, goal});
  }
  void add_memory(const std::string& subject, const std::string& name, double bytes) {
    bench_.report.add({memory_part_, subject, name, "GB", bytes / kGiga});
  }
  void add_notes();
  // Adds what follows from the milliseconds of a step.
  void add_step(const std::string& subject, double milliseconds);
  // Milliseconds of a step of each body, in turns, by body and round.
  std::vector<std::vector<double>> time_steps(const std::vector<Body>& bodies);
  void measure_plain();
  void measure_stage(int stage);
  void add_plain_memory(int64_t measured);
  void add_engine_memory(const std::string& subject, Engine& engine, int64_t measured);

  Bench& bench_;
  ModelSize size_;
  std::string part_;
  std::string memory_part_;
  TimeLimit limit_;
  std::optional<PlainTraining> plain_;
  bool plain_is_measured_ = false;
  int64_t parameters_ = 0;
};

void SizeMeasurement::measure() {
  attempt(bench_, part_, "plain", [&] { measure_plain(); });
  for (int stage = 0; stage < kStages; ++stage) {
    const std::string subject = "stage " + std::to_string(stage);
    if (!plain_is_measured_) {
      bench_.report.add_skipped(part_, subject, "the plain loop failed, with which it is compared");
    } else if (limit_.is_over()) {
      bench_.report.add_skipped(part_, subject, "no time left: --seconds-limit");
    } else {
      attempt(bench_, part_, subject, [&] { measure_stage(stage); });
    }
    bench_.clock.empty_cache();
  }
  plain_.reset();
  bench_.clock.empty_cache();
}

void SizeMeasurement::add_notes() {
  const samples::Gpt2Options& model = size_.model;
  bench_.report.add_note(part_, std::to_string(parameters_) + " parameters, " + std::to_string(model.layers) +
                                    " layers, hidden " + std::to_string(model.hidden) + ", sequences of " +
                                    std::to_string(model.positions) + " tokens, micro-batch " +
                                    std::to_string(size_.micro_batch) + ", bf16, gradient_clipping " +
                                    std::to_string(kClipping).substr(0, 3));
  bench_.report.add_note(
      part_,
      "plain: bf16 weights and gradients, gradients converted to fp32, fused AdamW on fp32 "
      "masters, one copy back; no norm");
  bench_.report.add_note(part_,
                         "share of peak: (6 * parameters without positions + 6 * layers * hidden * sequence) "
                         "operations a token, of the measured bf16 matrix product");
  bench_.report.add_note(memory_part_,
                         "states: parameters + gradients + master + moments; formula: "
                         "docs/architecture.md; measured: what the driver says is in use after " +
                             std::to_string(kWarmUpSteps) +
                             " steps, less before, with activations and LibTorch's cache");
}

void SizeMeasurement::add_step(const std::string& subject, double milliseconds) {
  const double seconds = milliseconds / 1e3;
  add(subject, "step", "ms", milliseconds);
  add(subject, "tokens", "1/s", static_cast<double>(size_.tokens()) / seconds);
  add(subject, "share of peak", "", flops_of_step(size_, parameters_) / seconds / matrix_rate(bench_));
}

std::vector<std::vector<double>> SizeMeasurement::time_steps(const std::vector<Body>& bodies) {
  constexpr int kStepsPerTurn = 4;
  return take_turns(bodies, bench_.options.rounds, TimeLimit(share_of_time()), [&](const Body& body) {
    return bench_.clock.time([&] { repeat(kStepsPerTurn, body); }) / kStepsPerTurn;
  });
}

void SizeMeasurement::measure_plain() {
  matrix_rate(bench_);
  bench_.clock.empty_cache();
  const int64_t before = bench_.clock.bytes_in_use();
  plain_.emplace(size_, bench_.clock.location());
  parameters_ = plain_->parameters();
  add_notes();
  plain_->step(/*clips=*/false);
  add("plain", "first loss", "", plain_->loss());
  repeat(kWarmUpSteps - 1, [&] { plain_->step(/*clips=*/false); });
  bench_.clock.wait();
  add_plain_memory(bench_.clock.bytes_in_use() - before);
  const double loss = plain_->loss();
  plain_->step(/*clips=*/true);  // warms up
  const auto times =
      time_steps({[&] { plain_->step(/*clips=*/false); }, [&] { plain_->step(/*clips=*/true); },
                  [&] { plain_->compute_gradients(); }});
  add_step("plain", median(times[0]));
  add("plain", "third loss", "", loss);
  add_step("plain, clipping", median(times[1]));
  add("plain, no update", "step", "ms", median(times[2]));
  plain_is_measured_ = true;
}

void SizeMeasurement::measure_stage(int stage) {
  const std::string subject = "stage " + std::to_string(stage);
  bench_.clock.empty_cache();
  const int64_t before = bench_.clock.bytes_in_use();
  EngineTraining training(size_, stage_config(stage), bench_.communicator);
  training.step();
  add(subject, "first loss", "", training.loss());
  repeat(kWarmUpSteps - 1, [&] { training.step(); });
  bench_.clock.wait();
  add_engine_memory(subject, training.engine(), bench_.clock.bytes_in_use() - before);
  const double loss = training.loss();
  const auto times = time_steps({[&] { plain_->step(/*clips=*/false); }, [&] { training.step(); }});
  std::vector<double> ratios;
  for (size_t round = 0; round < times[0].size(); ++round)
    ratios.push_back(times[1][round] / times[0][round]);
  constexpr double kGoal = 1.03;
  add_step(subject, median(times[1]));
  add(subject, "third loss", "", loss);
  add(subject, "plain beside it", "ms", median(times[0]));
  add(subject, "ratio", "", median(ratios), at_most(kGoal));
}

void SizeMeasurement::add_plain_memory(int64_t measured) {
  const auto numel = static_cast<double>(parameters_);
  add_memory("plain", "parameters", 2 * numel);
  add_memory("plain", "gradients", 2 * numel);
  add_memory("plain", "master", 4 * numel);
  add_memory("plain", "moments", 8 * numel);
  add_memory("plain", "buckets", 4 * numel);  // gradients in fp32
  add_memory("plain", "states", 16 * numel);
  add_memory("plain", "measured", static_cast<double>(measured));
}

void SizeMeasurement::add_engine_memory(const std::string& subject, Engine& engine, int64_t measured) {
  const BytesByCategory bytes = engine.bytes_by_category();
  auto add_bytes = [&](const std::string& name, int64_t value) {
    add_memory(subject, name, static_cast<double>(value));
  };
  add_bytes("parameters", bytes.parameters);
  add_bytes("gradients", bytes.gradients);
  add_bytes("master", bytes.master);
  add_bytes("moments", bytes.moments);
  add_bytes("buckets", bytes.buckets);
  add_bytes("gathered", bytes.gathered);
  add_bytes("states", bytes.model_states());
  add_memory(subject, "formula", engine.formula_bytes());
  bench_.report.add({memory_part_, subject, "states / formula", "",
                     static_cast<double>(bytes.model_states()) / engine.formula_bytes()});
  add_bytes("measured", measured);
}

std::atomic<int64_t> operators_run = 0;
std::unique_ptr<at::ObserverContext> count_operator(const at::RecordFunction& /*function*/) {
  ++operators_run;
  return nullptr;
}

// Returns the number of operators that a step runs, on all threads.
int64_t count_operators(const Body& step) {
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback(count_operator).scopes({at::RecordScope::FUNCTION}));
  operators_run = 0;
  step();
  at::removeCallback(handle);
  return operators_run;
}

// Returns by how many nanoseconds of the host an operator is slower if an argument of it is a parameter of a
// partitioned model.
double interception_ns(Bench& bench, EngineTraining& training) {
  at::NoGradGuard no_grad;
  const int calls = bench.options.tiny ? 50 : 2000;
  const at::Tensor parameter = training.model().parameters().back();
  const at::Tensor other = at::ones_like(parameter);
  const GatheredParameters scope(training.engine(), {parameter});
  auto add_to = [&](const at::Tensor& tensor) {
    return [&, tensor] { repeat(calls, [&] { at::add(tensor, other); }); };
  };
  const auto times = take_turns({add_to(other), add_to(parameter)}, 5 * bench.options.rounds,
                                TimeLimit(bench.options.seconds_limit / 4),
                                [&](const Body& body) { return bench.clock.time_on_host(body); });
  std::vector<double> differences;
  for (size_t round = 0; round < times[0].size(); ++round)
    differences.push_back((times[1][round] - times[0][round]) * 1e6 / calls);
  return median(differences);
}

}  // namespace

void measure_gpt2(Bench& bench) {
  for (const std::string& name : bench.options.sizes) {
    SizeMeasurement(bench, name).measure();
    bench.report.print_new();
  }
}

void measure_operators(Bench& bench) {
  const std::string part = "operators";
  const int steps_per_turn = bench.options.tiny ? 2 : 10;
  const ModelSize size = size_of("narrow", bench.options.tiny);
  PlainTraining plain(size, bench.clock.location());
  std::vector<std::unique_ptr<EngineTraining>> trainings;
  std::vector<std::string> names = {"plain, clipping"};
  std::vector<Body> bodies = {[&] { plain.step(/*clips=*/true); }};
  for (int stage = 0; stage <= 3; ++stage) {
    trainings.push_back(
        std::make_unique<EngineTraining>(size, narrow_stage_config(stage), bench.communicator));
    names.push_back("stage " + std::to_string(stage));
    bodies.push_back([training = trainings.back().get()] { training->step(); });
  }
  for (const Body& body : bodies) repeat(kWarmUpSteps, body);
  bench.clock.wait();
  const auto times = take_turns(
      bodies, bench.options.rounds, TimeLimit(bench.options.seconds_limit / 2), [&](const Body& body) {
        return bench.clock.time_on_host([&] { repeat(steps_per_turn, body); }) / steps_per_turn;
      });
  bench.report.add_note(part,
                        "the host's time for steps of a model so narrow that the GPU waits for the host");
  const double plain_us = median(times[0]) * 1e3;
  for (size_t i = 0; i < bodies.size(); ++i) {
    const auto operators = static_cast<double>(count_operators(bodies[i]));
    const double step_us = median(times[i]) * 1e3;
    bench.report.add({part, names[i], "step", "us", step_us});
    bench.report.add({part, names[i], "operators", "", operators});
    bench.report.add({part, names[i], "an operator", "us", step_us / operators});
    if (i == 0) continue;
    bench.report.add({part, names[i], "more than plain", "us", step_us - plain_us});
    bench.report.add({part, names[i], "ratio", "", step_us / plain_us});
  }
  bench.report.add({part, "an operator on a parameter, stage 3", "more than on a tensor", "ns",
                    interception_ns(bench, *trainings.back())});
}

void measure_offload(Bench& bench) {
  const std::string part = "offload";
  const std::string subject = "124M, stage 2, optimizer on the host";
  constexpr int kStepsPerTurn = 2;
  nlohmann::json zero = stage_config(2);
  zero["offload_optimizer"] = {{"device", "cpu"}};
  const ModelSize size = size_of("124M", bench.options.tiny);
  EngineTraining training(size, zero, bench.communicator);
  repeat(kWarmUpSteps, [&] { training.step(); });
  bench.clock.wait();
  const auto times =
      take_turns({[&] { training.step(); }}, bench.options.rounds, TimeLimit(bench.options.seconds_limit / 2),
                 [&](const Body& body) {
                   return bench.clock.time_on_host([&] { repeat(kStepsPerTurn, body); }) / kStepsPerTurn;
                 });
  bench.report.add({part, subject, "step", "ms", median(times[0])});
  bench.report.add(
      {part, subject, "tokens", "1/s", static_cast<double>(size.tokens()) / median(times[0]) * 1e3});
  bench.report.add({part, subject, "states on the host", "GB",
                    static_cast<double>(training.engine().bytes_by_category().on_host) / kGiga});
  bench.report.add({part, subject, "threads of the host", "", static_cast<double>(at::get_num_threads())});
}

}  // namespace zerorun
