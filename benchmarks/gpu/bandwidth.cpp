// The parts copy and kernels of bench_gpu: what the card can do, and which share of it the engine's kernels
// reach.
#include <ATen/ops/_fused_adamw.h>
#include <torch/torch.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/figures.h"
#include "benchmarks/gpu/bench.h"
#include "device/dtypes.h"
#include "device/step_facts.h"
#include "device/update_rules.h"

namespace zerorun {
namespace {

// Something that moves a known number of bytes.
struct Transfer {
  std::string name;
  std::string bytes;  // how they add up, by element
  int64_t bytes_per_element;
  int64_t numel;
  Body run;
};

// So many runs are timed together that the time of starting them does not matter.
constexpr int kRunsPerSample = 4;

at::Tensor empty(const Bench& bench, at::ScalarType dtype, int64_t numel) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype).device(bench.clock.location()));
}

at::Tensor normal(const Bench& bench, at::ScalarType dtype, int64_t numel) {
  return empty(bench, dtype, numel).normal_();
}

// Times the transfers in turns and adds their times and rates to the report. Returns the rates in bytes per
// second.
std::vector<double> measure(Bench& bench, const std::string& part, const std::vector<Transfer>& transfers) {
  std::vector<Body> bodies;
  for (const Transfer& transfer : transfers) {
    bodies.push_back([&transfer] {
      for (int run = 0; run < kRunsPerSample; ++run) transfer.run();
    });
    bodies.back()();  // warms up
  }
  bench.clock.wait();
  const TimeLimit limit(bench.options.seconds_limit);
  const auto times = take_turns(bodies, 3 * bench.options.rounds, limit,
                                [&](const Body& body) { return bench.clock.time(body); });
  std::vector<double> rates;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& transfer = transfers[i];
    const double milliseconds = median(times[i]) / kRunsPerSample;
    const auto bytes = static_cast<double>(transfer.bytes_per_element * transfer.numel);
    rates.push_back(bytes / milliseconds * 1e3);
    bench.report.add({part, transfer.name, "time", "ms", milliseconds});
    bench.report.add({part, transfer.name, "rate", "GB/s", rates.back() / kGiga});
    bench.report.add(
        {part, transfer.name, "bytes", "B/element", static_cast<double>(transfer.bytes_per_element)});
    bench.report.add_note(part, transfer.name + ": " + transfer.bytes);
  }
  return rates;
}

// Copies 1 GiB from one place to another.
Transfer copy_transfer(Bench& bench) {
  const int64_t numel = bench.options.tiny ? 1 << 14 : 1 << 28;
  const at::Tensor from = normal(bench, at::kFloat, numel);
  const at::Tensor to = empty(bench, at::kFloat, numel);
  return {"device copy", "read 4 + written 4", 8, numel,
          [device = &bench.clock.device(), from, to] { device->copy(to, from); }};
}

// The memory of the update and of the gradient kernels.
struct Arrays {
  Arrays(Bench& bench, int64_t numel)
      : bf16(normal(bench, at::kBFloat16, numel)),
        fp32(normal(bench, at::kFloat, numel)),
        rounded(empty(bench, at::kBFloat16, numel)),
        values(normal(bench, at::kFloat, numel)),
        first(empty(bench, at::kFloat, numel).zero_()),
        second(empty(bench, at::kFloat, numel).zero_()),
        tally(bench.clock.device().allocate(sizeof(Tally) / sizeof(double), at::kDouble)),
        facts(bench.clock.device().allocate(kFactsNumel, at::kDouble)) {
    const StepFacts known{.norm = 1, .divisor = 2, .factor = 0.5F, .apply = 1};
    at::Tensor on_host = at::empty({kFactsNumel}, at::kDouble);
    std::memcpy(on_host.mutable_data_ptr(), &known, sizeof known);
    facts.copy_(on_host);
  }

  at::Tensor bf16, fp32;  // gradients
  at::Tensor rounded;
  at::Tensor values, first, second;  // AdamW's
  at::Tensor tally, facts;
};

Transfer update_transfer(Device& device, const Arrays& arrays, const at::Tensor& gradient) {
  static constexpr AdamUpdate kAdamW{.beta1 = 0.9F,
                                     .new_in_first = 0.1F,
                                     .beta2 = 0.999F,
                                     .new_in_second = 0.001F,
                                     .step_size = 1e-4F,
                                     .root_factor = 1,
                                     .eps = 1e-8F,
                                     .gradient_decay = 0,
                                     .value_decay = 1e-6F};
  const UpdateTensors tensors{.gradient = gradient,
                              .values = arrays.values,
                              .first = arrays.first,
                              .second = arrays.second,
                              .third = {},
                              .rounded = arrays.rounded};
  const int64_t size = gradient.element_size();
  return {"AdamW, gradient " + std::string(name_of(dtype_of(gradient))),
          "gradient read " + std::to_string(size) +
              " + fp32 values and 2 moments read and written 24 + bf16 values written 2",
          size + 26, gradient.numel(),
          [&device, tensors, facts = arrays.facts] { device.update(kAdamW, tensors, facts); }};
}

// LibTorch's fused update, which has fp32 gradients and writes no rounded values.
Transfer fused_transfer(const Arrays& arrays) {
  const at::Tensor step = at::full({}, 10.0, arrays.values.options());
  return {"LibTorch's fused AdamW, fp32", "gradient read 4 + values and 2 moments read and written 24", 28,
          arrays.values.numel(), [arrays, step] {
            at::_fused_adamw_({arrays.values}, {arrays.fp32}, {arrays.first}, {arrays.second}, {}, {step},
                              /*lr=*/1e-4, /*beta1=*/0.9, /*beta2=*/0.999, /*weight_decay=*/0.01,
                              /*eps=*/1e-8, /*amsgrad=*/false, /*maximize=*/false);
          }};
}

std::vector<Transfer> gradient_transfers(Device& device, const Arrays& arrays) {
  const int64_t numel = arrays.bf16.numel();
  const FiniteCheck check{arrays.tally, 1};
  std::vector<Transfer> transfers;
  for (const at::Tensor& gradient : {arrays.bf16, arrays.fp32}) {
    const int64_t size = gradient.element_size();
    const std::string dtype = name_of(dtype_of(gradient));
    transfers.push_back(
        {"norm (add_squares), " + dtype, "read " + std::to_string(size), size, numel,
         [&device, tally = arrays.tally, gradient] { device.add_squares(tally, gradient, 1, 1); }});
    // A factor of 1 keeps the values as they are, however often this runs.
    transfers.push_back(
        {"unscale in place, " + dtype, "read " + std::to_string(size) + " + written " + std::to_string(size),
         2 * size, numel,
         [&device, gradient, check] { device.copy_scaled(gradient, gradient, 1.0F, check); }});
  }
  transfers.push_back(
      {"gradient copy (copy_scaled), bf16 to fp32", "read 2 + written 4", 6, numel,
       [&device, arrays, check] { device.copy_scaled(arrays.fp32, arrays.bf16, 0.5F, check); }});
  transfers.push_back(
      {"gradient sum (add_scaled), bf16 to fp32", "read 2 + read and written 8", 10, numel,
       [&device, arrays, check] { device.add_scaled(arrays.fp32, arrays.bf16, 1e-3F, check); }});
  return transfers;
}

}  // namespace

double matrix_rate(Bench& bench) {
  if (bench.matrix_rate > 0) return bench.matrix_rate;
  const int64_t side = bench.options.tiny ? 64 : 8192;
  const at::Tensor left = normal(bench, at::kBFloat16, side * side).view({side, side});
  const at::Tensor right = normal(bench, at::kBFloat16, side * side).view({side, side});
  at::Tensor product = at::empty_like(left);
  const Body body = [&] {
    for (int run = 0; run < kRunsPerSample; ++run) at::mm_out(product, left, right);
  };
  body();
  bench.clock.wait();
  const auto times = take_turns({body}, 3 * bench.options.rounds, TimeLimit(bench.options.seconds_limit),
                                [&](const Body& timed) { return bench.clock.time(timed); });
  const double seconds = median(times[0]) / kRunsPerSample / 1e3;
  bench.matrix_rate = 2.0 * static_cast<double>(side * side * side) / seconds;
  return bench.matrix_rate;
}

void measure_copy(Bench& bench) {
  at::NoGradGuard no_grad;
  const Transfer copy = copy_transfer(bench);
  const at::Tensor from = normal(bench, at::kFloat, copy.numel);
  at::Tensor to = empty(bench, at::kFloat, copy.numel);
  const Transfer kernel{"LibTorch's kernel to = from * 2", "read 4 + written 4", 8, copy.numel,
                        [from, to]() mutable { at::mul_out(to, from, at::scalar_tensor(2.0F)); }};
  measure(bench, "copy", {copy, kernel});
  const std::string side = bench.options.tiny ? "64" : "8192";
  bench.report.add(
      {"copy", "bf16 matrix product, side " + side, "rate", "TFLOP/s", matrix_rate(bench) / 1e12});
}

void measure_kernels(Bench& bench) {
  at::NoGradGuard no_grad;
  constexpr double kGoal = 0.85;
  Device& device = bench.clock.device();
  const Arrays arrays(bench, bench.options.tiny ? 1 << 14 : 1 << 27);
  std::vector<Transfer> transfers = {copy_transfer(bench), update_transfer(device, arrays, arrays.bf16),
                                     update_transfer(device, arrays, arrays.fp32), fused_transfer(arrays)};
  for (Transfer& transfer : gradient_transfers(device, arrays)) transfers.push_back(std::move(transfer));
  const std::vector<double> rates = measure(bench, "kernels", transfers);
  for (size_t i = 1; i < transfers.size(); ++i) {
    const bool is_update = transfers[i].name.starts_with("AdamW");
    bench.report.add({"kernels", transfers[i].name, "share of copy", "", rates[i] / rates[0],
                      is_update ? at_least(kGoal) : Goal()});
  }
}

}  // namespace zerorun
