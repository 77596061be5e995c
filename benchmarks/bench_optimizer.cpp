// bench_optimizer: measures how many bytes of memory per second one step of each optimizer reads and writes.
// Compares the kernels for this processor's best instruction set with the kernels for its other instruction
// sets, with LibTorch's at::_fused_adamw_ and with STREAM's triad. All cases take turns within one run, so
// that noise of the machine affects all of them.
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "device/cpu_device.h"
#include "device/dtypes.h"
#include "device/element_hash.h"
#include "device/moment_codes.h"
#include "device/step_facts.h"
#include "device/update_rules.h"

namespace zerorun {
namespace {

struct Options {
  int64_t numel = int64_t{1} << 25;
  int rounds = 15;
  std::vector<int> threads = {1, 2};
  std::vector<std::string> only;
  bool other_simds = true;
  bool json = false;
};

// The tensors that all cases with the same number of threads use. fill_() divides elements among threads as
// the kernels do, so each page is first touched by the thread that uses it later.
class Arrays {
 public:
  explicit Arrays(int64_t numel) : numel_(numel) {}

  UpdateTensors tensors(int moments, Dtype dtype) const {
    const size_t place = static_cast<size_t>(dtype);
    return {.gradient = gradients_[place],
            .values = values_,
            .first = moments > 0 ? first_ : at::Tensor(),
            .second = moments > 1 ? second_ : at::Tensor(),
            .third = {},
            .rounded = dtype == Dtype::fp32 ? at::Tensor() : rounded_[place]};
  }

 private:
  at::Tensor filled(Dtype dtype, double value) const {
    return cpu_device().allocate(numel_, scalar_type(dtype)).fill_(value);
  }

  int64_t numel_;
  at::Tensor values_ = filled(Dtype::fp32, 0.5);
  at::Tensor first_ = filled(Dtype::fp32, 0.01);
  at::Tensor second_ = filled(Dtype::fp32, 0.01);
  at::Tensor gradients_[3] = {filled(Dtype::fp32, 0.1), filled(Dtype::bf16, 0.1), filled(Dtype::fp16, 0.1)};
  at::Tensor rounded_[3] = {at::Tensor(), filled(Dtype::bf16, 0), filled(Dtype::fp16, 0)};
};

struct Case {
  std::string name;
  std::string simd;  // instruction set; empty for code that is not ZeroRun's
  int threads;
  std::string bytes;  // how bytes_per_element is computed, as text to print
  int64_t bytes_per_element;
  int64_t elements;
  std::function<void()> run;
  std::vector<double> seconds = {};
};

struct NamedRule {
  const char* name;
  UpdateRule rule;
  int moments;
};

constexpr AdamUpdate kAdamW{.beta1 = 0.9F,
                            .new_in_first = 0.1F,
                            .beta2 = 0.999F,
                            .new_in_second = 0.001F,
                            .step_size = 1e-4F,
                            .root_factor = 1,
                            .eps = 1e-8F,
                            .gradient_decay = 0,
                            .value_decay = 1e-6F};
constexpr MomentumUpdate kMomentum{
    .lr = 1e-4F, .gradient_decay = 0, .momentum = 0.9F, .new_in_first = 1, .of_gradient = 0, .of_first = 1};
constexpr LionUpdate kLion{
    .lr = 1e-6F, .beta1 = 0.9F, .new_in_step = 0.1F, .beta2 = 0.99F, .new_in_first = 0.01F, .kept = 1};
const NamedRule kRules[] = {{"AdamW", kAdamW, 2},
                            {"SGD", SgdUpdate{.lr = 1e-6F, .gradient_decay = 0}, 0},
                            {"momentum", kMomentum, 1},
                            {"Lion", kLion, 1}};

// One update of these tensors as the engine runs it, on LibTorch's intra-op threads.
std::function<void()> run_of_update(const UpdateRule& rule, const UpdateTensors& tensors, Simd simd) {
  at::Tensor facts = torch::zeros({kFactsNumel}, at::kDouble);
  const StepFacts known{.norm = 1, .divisor = 2, .factor = 0.5F, .apply = 1};
  std::memcpy(facts.mutable_data_ptr(), &known, sizeof known);
  return [rule, tensors, facts, device = std::make_shared<CpuDevice>(simd)] {
    device->update(rule, tensors, facts);
  };
}

// An update of fp32 values with moments in 8 bits.
Case codes_case(const NamedRule& rule, Simd simd, int threads, const Arrays& arrays) {
  UpdateTensors tensors = arrays.tensors(0, Dtype::fp32);
  const int64_t numel = tensors.values.numel();
  const auto put_codes = [&](at::Tensor& codes, at::Tensor& scales) {
    codes = cpu_device().allocate(numel, at::kByte).fill_(3);
    scales = cpu_device().allocate(coded_blocks(numel), at::kFloat).fill_(0.01);
  };
  put_codes(tensors.first, tensors.first_scales);
  if (rule.moments > 1) put_codes(tensors.second, tensors.second_scales);
  return {std::string(rule.name) + " 8 bits",
          name_of(simd),
          threads,
          "gradient 4 + values 2*4 + moments 2*" + std::to_string(rule.moments),
          12 + 2 * rule.moments,
          numel,
          run_of_update(rule.rule, tensors, simd)};
}

Case update_case(const NamedRule& rule, Dtype dtype, Simd simd, int threads, const Arrays& arrays) {
  const int64_t kept = 1 + rule.moments;  // values and moments
  std::string bytes =
      "gradient " + std::to_string(size_of(dtype)) + " + values and moments 2*" + std::to_string(4 * kept);
  int64_t sum = size_of(dtype) + 8 * kept;
  if (dtype != Dtype::fp32) {
    bytes += " + rounded " + std::to_string(size_of(dtype));
    sum += size_of(dtype);
  }
  const UpdateTensors tensors = arrays.tensors(rule.moments, dtype);
  return {std::string(rule.name) + " " + name_of(dtype),
          name_of(simd),
          threads,
          std::move(bytes),
          sum,
          tensors.values.numel(),
          run_of_update(rule.rule, tensors, simd)};
}

Case fused_adamw_case(int threads, const Arrays& arrays) {
  const UpdateTensors tensors = arrays.tensors(2, Dtype::fp32);
  const at::Tensor step = torch::full({}, 10.0, at::kFloat);
  return {"at::_fused_adamw_ fp32",
          "",
          threads,
          "gradient 4 + values and moments 2*12",
          28,
          tensors.values.numel(),
          [tensors, step] {
            at::_fused_adamw_({tensors.values}, {tensors.gradient}, {tensors.first}, {tensors.second}, {},
                              {step}, /*lr=*/1e-4, /*beta1=*/0.9, /*beta2=*/0.999, /*weight_decay=*/0.01,
                              /*eps=*/1e-8, /*amsgrad=*/false, /*maximize=*/false);
          }};
}

// a = b + 3 c in float64 (McCalpin's STREAM), divided among threads as the kernels are. A processor may have
// to read the cache lines of `a` before it writes them. Like STREAM, this case does not count these bytes.
Case triad_case(int threads, const Arrays& arrays, int64_t numel) {
  const UpdateTensors floats = arrays.tensors(2, Dtype::fp32);
  auto doubles = [&](const at::Tensor& tensor) {
    return tensor.narrow(0, 0, numel / 2 * 2).view(at::kDouble).fill_(0.5);
  };
  auto run = [a = doubles(floats.values), b = doubles(floats.first), c = doubles(floats.second)] {
    at::TensorBase whole = a;
    auto* start = a.mutable_data_ptr<double>();
    at::TensorIterator::nullary_op(whole).for_each(
        [&](char** data, const int64_t*, int64_t inner, int64_t outer) {
          double* __restrict to = reinterpret_cast<double*>(data[0]);
          const double* __restrict left = b.const_data_ptr<double>() + (to - start);
          const double* __restrict right = c.const_data_ptr<double>() + (to - start);
          for (int64_t i = 0; i < inner * outer; ++i) to[i] = left[i] + 3.0 * right[i];
        });
  };
  return {"STREAM triad", "", threads, "float64: read 2*8 + written 8", 24, numel / 2, run};
}

// What the run log's hashes add to an update: of gradients, and of values before and after it.
Case hashes_case(Simd simd, int threads, const Arrays& arrays) {
  const UpdateTensors tensors = arrays.tensors(0, Dtype::fp32);
  return {"hashes fp32", name_of(simd), threads, "gradient 4 + values 2*4", 12, tensors.values.numel(), [=] {
            at::parallel_for(0, tensors.values.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
              const float* values = tensors.values.const_data_ptr<float>() + begin;
              const float* gradients = tensors.gradient.const_data_ptr<float>() + begin;
              volatile uint64_t sum = hash_of_products(gradients, 0.5F, end - begin, begin, simd);
              for (int pass = 0; pass < 2; ++pass)
                sum = sum + hash_of_bits(values, sizeof(float), end - begin, begin, 0, simd);
            });
          }};
}

std::vector<Case> make_cases(const Options& options, int threads, const Arrays& arrays) {
  std::vector<Case> cases = {triad_case(threads, arrays, options.numel), fused_adamw_case(threads, arrays)};
  for (const NamedRule& rule : kRules) {
    for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
      cases.push_back(update_case(rule, dtype, widest_simd(), threads, arrays));
    }
  }
  for (const NamedRule& rule : {kRules[0], kRules[3]})
    cases.push_back(codes_case(rule, widest_simd(), threads, arrays));
  cases.push_back(hashes_case(widest_simd(), threads, arrays));
  if (!options.other_simds) return cases;
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    for (Simd simd : available_simds()) {
      if (simd == widest_simd()) continue;
      cases.push_back(update_case(kRules[0], dtype, simd, threads, arrays));
    }
  }
  return cases;
}

double time_of(const Case& timed) {
  at::set_num_threads(timed.threads);
  const auto begin = std::chrono::steady_clock::now();
  timed.run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void report(const Options& options, const std::vector<Case>& cases) {
  nlohmann::json result{{"numel", options.numel},
                        {"rounds", options.rounds},
                        {"widest_simd", name_of(widest_simd())},
                        {"cases", nlohmann::json::array()}};
  if (!options.json) {
    std::printf("%.1f M elements, medians of %d rounds; GB/s: 1e9 bytes of the formula in a second\n",
                static_cast<double>(options.numel) / 1e6, options.rounds);
    std::printf("threads  case                     instructions      ms    GB/s  bytes of an element\n");
  }
  for (const Case& timed : cases) {
    const double seconds = median(timed.seconds);
    const double rate = static_cast<double>(timed.bytes_per_element * timed.elements) / seconds / 1e9;
    result["cases"].push_back({{"name", timed.name},
                               {"simd", timed.simd},
                               {"threads", timed.threads},
                               {"bytes", timed.bytes},
                               {"bytes_per_element", timed.bytes_per_element},
                               {"elements", timed.elements},
                               {"seconds", seconds},
                               {"gb_per_s", rate}});
    if (!options.json) {
      std::printf("%7d  %-24s %-12s %7.2f %7.2f  %2lld = %s\n", timed.threads, timed.name.c_str(),
                  timed.simd.c_str(), seconds * 1e3, rate, static_cast<long long>(timed.bytes_per_element),
                  timed.bytes.c_str());
    }
  }
  if (options.json) std::printf("%s\n", result.dump(2).c_str());
}

int run_benchmark(const Options& options) {
  at::NoGradGuard no_grad;
  std::vector<Case> cases;
  for (int threads : options.threads) {
    at::set_num_threads(threads);
    const Arrays arrays(options.numel);
    for (Case& made : make_cases(options, threads, arrays)) {
      const bool wanted = options.only.empty() || std::find(options.only.begin(), options.only.end(),
                                                            made.name) != options.only.end();
      if (wanted) cases.push_back(std::move(made));
    }
  }
  constexpr int kWarmUp = 1;
  for (int round = -kWarmUp; round < options.rounds; ++round) {
    for (Case& timed : cases) {
      const double seconds = time_of(timed);
      if (round >= 0) timed.seconds.push_back(seconds);
    }
  }
  report(options, cases);
  return 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app("Times one step of each optimizer, in bytes moved per second.", "bench_optimizer");
  app.option_defaults()->always_capture_default();
  app.add_option("--numel", options.numel,
                 "elements, 36 bytes each; the default's 4 arrays of AdamW are 512 MiB")
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "timed steps of each case")->check(CLI::Range(1, 10000));
  app.add_option("--threads", options.threads, "numbers of threads")->check(CLI::Range(1, 1024));
  app.add_option("--only", options.only, "names of cases; all others are left out");
  app.add_flag("--other-simds,!--no-other-simds", options.other_simds,
               "AdamW on the instruction sets that are not the best, too");
  app.add_flag("--json", options.json, "print JSON");
  return zerorun::parse_and_run(app, argc, argv, [&] { return zerorun::run_benchmark(options); });
}
