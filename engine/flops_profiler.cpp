#include "engine/flops_profiler.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "engine/flops_modules.h"
#include "monitor/flops_report.h"
#include "zero/node_pointer.h"

namespace zerorun {

struct CountedFlops {
  std::mutex mutex;
  FlopTotals totals;
  std::unique_ptr<FlopsModules> modules;  // null: not counted by module
};

namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;
using Formula = int64_t (*)(Inputs inputs);

thread_local std::shared_ptr<CountedFlops> of_thread;
std::atomic<std::shared_ptr<CountedFlops>> of_process;
thread_local int counted_around = 0;  // counted operators that this one runs inside of

Sizes sizes_of(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return {};
  const at::IntArrayRef sizes = value.toTensor().sizes();
  return {sizes.data(), sizes.size()};
}

template <size_t a, size_t b>
int64_t product_of(Inputs inputs) {
  return inputs.size() > b ? product_flops(sizes_of(inputs[a]), sizes_of(inputs[b])) : 0;
}

// A vector is a matrix of one column.
template <size_t a>
int64_t vector_product_of(Inputs inputs) {
  const int64_t one = 1;
  return inputs.size() > a ? product_flops(sizes_of(inputs[a]), {&one, 1}) : 0;
}

std::vector<int64_t> output_of_convolution(Inputs inputs) {
  const auto input = inputs[0].toTensor().sizes();
  const auto kernel = inputs[1].toTensor().sizes();
  const auto stride = inputs[3].toIntVector();
  const auto padding = inputs[4].toIntVector();
  const auto dilation = inputs[5].toIntVector();
  std::vector<int64_t> output = {input[0], kernel[0]};
  for (size_t axis = 2; axis < input.size(); ++axis) {
    const size_t which = stride.size() == 1 ? 0 : axis - 2;
    const int64_t span = dilation[dilation.size() == 1 ? 0 : axis - 2] * (kernel[axis] - 1) + 1;
    const int64_t around = 2 * padding[padding.size() == 1 ? 0 : axis - 2];
    output.push_back((input[axis] + around - span) / stride[which] + 1);
  }
  return output;
}

// aten::convolution(input, weight, bias, stride, padding, dilation, transposed, ...)
int64_t convolution_of(Inputs inputs) {
  if (inputs.size() < 7 || !inputs[0].isTensor()) return 0;
  if (inputs[6].toBool()) return convolution_flops(sizes_of(inputs[1]), sizes_of(inputs[0]));
  return convolution_flops(sizes_of(inputs[1]), output_of_convolution(inputs));
}

// aten::convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
// output_padding, groups, output_mask): a convolution each for the gradients of input and weight.
int64_t convolution_backward_of(Inputs inputs) {
  if (inputs.size() < 11) return 0;
  const auto wanted = inputs[10].toBoolList();
  const size_t output = inputs[7].toBool() ? 1 : 0;
  const int64_t one = convolution_flops(sizes_of(inputs[2]), sizes_of(inputs[output]));
  return one * (static_cast<int64_t>(wanted.get(0)) + static_cast<int64_t>(wanted.get(1)));
}

int64_t attention_of(Inputs inputs) {
  if (inputs.size() < 3) return 0;
  return attention_flops(sizes_of(inputs[0]), sizes_of(inputs[1]), sizes_of(inputs[2]));
}

int64_t attention_backward_of(Inputs inputs) {
  if (inputs.size() < 4) return 0;
  return attention_backward_flops(sizes_of(inputs[1]), sizes_of(inputs[2]), sizes_of(inputs[3]));
}

// Composite operators (linear, matmul, einsum) call these.
const std::unordered_map<std::string_view, Formula>& formulas() {
  static const std::unordered_map<std::string_view, Formula> all = {
      {"aten::mm", product_of<0, 1>},
      {"aten::addmm", product_of<1, 2>},
      {"aten::addmm_", product_of<1, 2>},
      {"aten::_addmm_activation", product_of<1, 2>},
      {"aten::bmm", product_of<0, 1>},
      {"aten::baddbmm", product_of<1, 2>},
      {"aten::baddbmm_", product_of<1, 2>},
      {"aten::addbmm", product_of<1, 2>},
      {"aten::mv", vector_product_of<0>},
      {"aten::addmv", vector_product_of<1>},
      {"aten::convolution", convolution_of},
      {"aten::convolution_backward", convolution_backward_of},
      {"aten::_scaled_dot_product_flash_attention", attention_of},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention_of},
      {"aten::_scaled_dot_product_efficient_attention", attention_of},
      {"aten::_scaled_dot_product_cudnn_attention", attention_of},
      {"aten::_scaled_dot_product_flash_attention_backward", attention_backward_of},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward_of},
      {"aten::_scaled_dot_product_efficient_attention_backward", attention_backward_of},
      {"aten::_scaled_dot_product_cudnn_attention_backward", attention_backward_of},
  };
  return all;
}

// A block's forward runs with gradients inside of a backward, which itself runs without.
FlopPhase phase_now() {
  if (!NodePointer(torch::autograd::get_current_node())) return FlopPhase::forward;
  return c10::GradMode::is_enabled() ? FlopPhase::recomputed : FlopPhase::backward;
}

// An operator that runs: a counted one, or one that uses a module's parameter, or both.
struct Running : at::ObserverContext {
  ~Running() override {
    if (is_counted) --counted_around;
    if (!before) return;
    const std::lock_guard lock(counted->mutex);
    counted->modules->leave(*before);
  }

  std::shared_ptr<CountedFlops> counted;
  bool is_counted = false;
  std::optional<FlopsModules::Place> before = {};
};

void add_flops(CountedFlops& counted, const char* name, int64_t flops) {
  const auto phase = static_cast<size_t>(phase_now());
  FlopTotals::Row& row = counted.totals.operators[name];
  ++row.calls;
  row.flops[phase] += flops;
  if (counted.modules) counted.modules->add_flops(phase, flops);
}

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  const auto formula = formulas().find(function.name());
  const bool is_counted = formula != formulas().end();
  const std::shared_ptr<CountedFlops> counted = of_thread ? of_thread : of_process.load();
  if (!is_counted && !(counted && counted->modules)) return nullptr;
  auto running = std::make_unique<Running>();
  running->counted = counted;
  if (counted) {
    const std::lock_guard lock(counted->mutex);
    if (counted->modules) running->before = counted->modules->enter(function.inputs());
    if (is_counted && counted_around == 0)
      add_flops(*counted, function.name(), formula->second(function.inputs()));
  }
  if (is_counted) {
    running->is_counted = true;
    ++counted_around;
  }
  return running;
}

}  // namespace

FlopCounter::FlopCounter(bool all_threads, std::unique_ptr<FlopsModules> modules)
    : counted_(std::make_shared<CountedFlops>()) {
  counted_->modules = std::move(modules);
  of_thread = counted_;
  if (all_threads) of_process.store(counted_);
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&on_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  at::removeCallback(callback_);
  of_thread.reset();
  std::shared_ptr<CountedFlops> own = counted_;
  of_process.compare_exchange_strong(own, nullptr);
}

FlopTotals FlopCounter::totals() const {
  const std::lock_guard lock(counted_->mutex);
  FlopTotals totals = counted_->totals;
  if (counted_->modules) totals.modules = counted_->modules->modules();
  return totals;
}

void FlopsProfiler::begin(int64_t steps) {
  reports_ = options_.config.enabled && options_.is_counted && steps == options_.config.profile_step;
  if (!reports_ && !is_wanted_) return;
  if (of_thread) {
    if (!reports_) return;
    log_warning(
        "flops_profiler: another engine of this process counts the operations of this step: this one's are "
        "not counted");
    return;
  }
  step_ = steps + 1;
  const bool by_module = reports_ && options_.config.detailed;
  counter_ = std::make_unique<FlopCounter>(
      options_.asynchronous, by_module ? std::make_unique<FlopsModules>(options_.of_model) : nullptr);
  begin_ = std::chrono::steady_clock::now();
}

void FlopsProfiler::end() {
  if (!counter_) return;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin_;
  const FlopTotals totals = counter_->totals();
  counter_.reset();
  model_flops_ = totals.model();
  is_wanted_ = false;
  if (!reports_) return;
  const std::string text =
      describe(totals, step_, options_.parameters, options_.asynchronous ? 0 : time.count(), options_.config);
  const std::string& file = options_.config.output_file;
  if (file.empty()) return log_info(text);
  std::ofstream stream(file);
  if (stream << text << '\n' && stream.flush()) return;
  log_warning("flops_profiler.output_file: cannot write " + file + ", so here it is: " + text);
}

}  // namespace zerorun
