#include "activations/recomputed_block.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "activations/block_operators.h"
#include "activations/forward_state.h"
#include "activations/measured_memory.h"
#include "base/error.h"
#include "base/log.h"

namespace zerorun {
namespace {

using torch::autograd::AutogradContext;

// The number of marked blocks that this thread is inside of.
thread_local int depth = 0;
// Whether this thread is in the forward of a recomputed block, whose graph is dropped.
thread_local bool drops_graph = false;

// During its lifetime the generators continue from `states`.
class Replay {
 public:
  Replay(const std::optional<GeneratorStates>& states, const std::vector<c10::Device>& devices) {
    if (!states) return;
    present_.emplace(devices);
    states->restore();
  }
  ~Replay() {
    if (present_) present_->restore();
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  std::optional<GeneratorStates> present_;
};

struct TensorFacts {
  bool defined;
  std::vector<int64_t> sizes;
  c10::ScalarType dtype;
  friend bool operator==(const TensorFacts&, const TensorFacts&) = default;
};

TensorFacts facts_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {false, {}, c10::ScalarType::Undefined};
  return {true, tensor.sizes().vec(), tensor.scalar_type()};
}

std::string describe(const TensorFacts& facts) {
  if (!facts.defined) return "an undefined tensor";
  std::string text = std::string(c10::toString(facts.dtype)) + " of sizes [";
  for (const int64_t size : facts.sizes) text += (text.back() == '[' ? "" : ", ") + std::to_string(size);
  return text + "]";
}

// `own`: that of the engine.
std::vector<c10::Device> devices_of(const Tensors& tensors, c10::Device own) {
  std::vector<c10::Device> devices = {own};
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && std::ranges::find(devices, tensor.device()) == devices.end())
      devices.push_back(tensor.device());
  }
  return devices;
}

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.has_storage()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

void wait_for(const std::vector<c10::Device>& devices) {
  for (const c10::Device device : devices) {
    if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
}

// A block between its forward and its backward.
struct Pending : torch::CustomClassHolder {
  std::shared_ptr<const Block> block;
  BlockFunction function;
  int outer_depth = 0;
  std::vector<c10::Device> devices;
  std::optional<GeneratorStates> generators;  // at the block's begin; absent if it draws nothing
  AutocastState autocast;
  KeptInputs inputs;
  std::vector<TensorFacts> outputs;
  bool is_compared = false;              // operator by operator: the first one of its name
  std::vector<BlockOperator> operators;  // if so
  std::vector<uint32_t> versions;        // of the block's parameters
  bool has_anchor = false;
};

// The inputs as leaves of a graph of their own.
Tensors as_leaves(const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad()) : input);
  return leaves;
}

// How often each tensor has been written to.
std::vector<uint32_t> versions_of(const Tensors& tensors) {
  std::vector<uint32_t> versions;
  for (const at::Tensor& tensor : tensors)
    versions.push_back(tensor.defined() && !tensor.is_inference() ? tensor._version() : 0);
  return versions;
}

std::string in_place_remedy(const std::string& name) {
  return "block " + name +
         " is recomputed in backward, for which its inputs must stay as they are: it may not write to them "
         "in place (zerorun.recompute.patterns can leave it out)";
}

// Calls the function with autograd on, as without recomputation: some operators choose their kernels by what
// requires grad.
Tensors call_with_graph(const Pending& pending, const Tensors& inputs, const Tensors& leaves) {
  const std::vector<uint32_t> before = versions_of(inputs);
  const c10::AutoGradMode grad(true);
  const bool outer = std::exchange(drops_graph, true);
  const auto end = c10::make_scope_exit([outer] { drops_graph = outer; });
  try {
    Tensors outputs = pending.function(leaves);
    if (versions_of(inputs) != before) throw UserError(in_place_remedy(pending.block->name));
    return outputs;
  } catch (c10::Error& error) {
    if (std::string_view(error.what_without_backtrace()).find("in-place operation") != std::string_view::npos)
      error.add_context(in_place_remedy(pending.block->name));
    throw;
  }
}

Tensors run_forward(Pending& pending, const Tensors& inputs, const Tensors& leaves) {
  pending.devices = devices_of(inputs, pending.block->recomputation->home().device);
  pending.generators.emplace(pending.devices);
  const AutocastCacheOff cache_off;
  const InsideBlock inside(pending.outer_depth);
  pending.is_compared = !drops_graph && pending.block->recomputation->compares(pending.block->name);
  const uint64_t begin = next_operator();
  Tensors outputs = call_with_graph(pending, inputs, leaves);
  if (pending.is_compared) pending.operators = operators_behind(outputs, begin);
  if (pending.generators->are_current()) pending.generators.reset();
  for (const at::Tensor& output : outputs) pending.outputs.push_back(facts_of(output));
  pending.versions = versions_of(pending.block->parameters);
  return outputs;
}

bool is_alias_of_any(const at::Tensor& tensor, const Tensors& others) {
  return std::ranges::any_of(others, [&](const at::Tensor& other) {
    return other.defined() && !other.is_same(tensor) && other.has_storage() && other.is_alias_of(tensor);
  });
}

// The output as one of the block's node, without the graph in which it was computed. Views of inputs or of
// other outputs stay views, to which autograd refuses writes: their history would be wrong.
at::Tensor without_graph(const std::string& block, const at::Tensor& output, const Tensors& outputs,
                         const Tensors& inputs, const Tensors& leaves) {
  if (!output.defined()) return output;
  const auto given =
      std::ranges::find_if(leaves, [&](const at::Tensor& leaf) { return leaf.is_same(output); });
  if (given != leaves.end()) return inputs[static_cast<size_t>(given - leaves.begin())];
  if (output.requires_grad() && output.is_leaf()) {
    throw UserError(
        "block " + block +
        ", which is recomputed in backward, returns a parameter or another tensor that begins a graph of "
        "its own: return what is computed from it, or use it outside of the block");
  }
  const bool is_view =
      output.has_storage() && (is_alias_of_any(output, inputs) || is_alias_of_any(output, outputs));
  return is_view ? output : output.detach();
}

// Plain LibTorch checks this of tensors that operators have saved.
void check_parameters(const Pending& pending) {
  const Tensors& parameters = pending.block->parameters;
  for (size_t index = 0; index < parameters.size(); ++index) {
    const uint32_t version = parameters[index]._version();
    if (version == pending.versions[index]) continue;
    throw UserError("block " + pending.block->name + " cannot be recomputed: its parameter " +
                    std::to_string(index + 1) + " of " + std::to_string(parameters.size()) + ", " +
                    describe(facts_of(parameters[index])) +
                    ", has been modified by an inplace operation or by step() since the forward: run the "
                    "forward again before backward()");
  }
}

// In which output the recomputation differs; empty: in none.
std::string difference_of(const Tensors& outputs, const std::vector<TensorFacts>& before) {
  if (outputs.size() != before.size())
    return std::to_string(outputs.size()) + " outputs, before " + std::to_string(before.size());
  for (size_t index = 0; index < outputs.size(); ++index) {
    const TensorFacts facts = facts_of(outputs[index]);
    if (facts == before[index]) continue;
    return "output " + std::to_string(index + 1) + " is " + describe(facts) + ", before " +
           describe(before[index]);
  }
  return "";
}

// Other operators are no error: LibTorch compiles a TorchScript function at its first calls, and makes the
// nodes of views anew. `first_operator`: of the recomputation.
void check_same(const Pending& pending, const Tensors& outputs, uint64_t first_operator) {
  const std::string results = difference_of(outputs, pending.outputs);
  const std::string operators =
      pending.is_compared ? describe_difference(operators_behind(outputs, first_operator), pending.operators)
                          : "";
  if (results.empty() && operators.empty()) return;
  const std::string text = "block " + pending.block->name +
                           " computes otherwise when it is recomputed: " + results +
                           (results.empty() || operators.empty() ? "" : "; ") + operators +
                           ": it must compute the same from the same inputs (leave the block out of "
                           "recomputation, or do not change in between what it depends on)";
  if (!results.empty()) throw UserError(text);
  log_warning(text);
}

Tensors compute_again(const Pending& pending, const Tensors& inputs) {
  const Replay replay(pending.generators, pending.devices);
  const AutocastScope autocast(pending.autocast);
  const c10::AutoGradMode grad(true);
  const InsideBlock inside(pending.outer_depth);
  const uint64_t first_operator = next_operator();
  Tensors outputs = pending.function(inputs);
  check_same(pending, outputs, first_operator);
  return outputs;
}

Tensors measure_again(const Pending& pending, const Tensors& inputs) {
  using Clock = std::chrono::steady_clock;
  wait_for(pending.devices);
  const MeasuredMemory memory;
  const Clock::time_point begin = Clock::now();
  Tensors outputs = compute_again(pending, inputs);
  wait_for(pending.devices);
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  // The outputs would be in memory without recomputation too, as inputs of what comes next.
  pending.block->recomputation->add(pending.block->name,
                                    {.inputs = bytes_of(inputs),
                                     .in_file = pending.inputs.bytes_in_file(),
                                     .activations = std::max<int64_t>(memory.held() - bytes_of(outputs), 0),
                                     .seconds = seconds.count()});
  return outputs;
}

void check_accumulates(const std::string& name) {
  if (c10::GradMode::is_enabled()) {
    throw UserError("block " + name +
                    " is recomputed in backward, which cannot be differentiated itself (create_graph): leave "
                    "the block out of recomputation (zerorun.recompute)");
  }
  if (torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) return;
  throw UserError(
      "block " + name +
      " is recomputed in backward, which works only where gradients are accumulated: call backward() "
      "without `inputs` instead of autograd::grad(), or leave the block out of recomputation "
      "(zerorun.recompute)");
}

struct RecomputedBlock : torch::autograd::Function<RecomputedBlock> {
  // `defined`: those of the inputs that are; behind them may be a tensor that only requires grad, so that the
  // outputs do.
  static Tensors forward(AutogradContext* context, const c10::intrusive_ptr<Pending>& pending,
                         const Tensors& inputs, at::TensorList /*defined*/) {
    const Tensors leaves = as_leaves(inputs), computed = run_forward(*pending, inputs, leaves);
    Tensors outputs, constants;
    for (const at::Tensor& output : computed) {
      outputs.push_back(without_graph(pending->block->name, output, computed, inputs, leaves));
      if (output.defined() && !output.requires_grad()) constants.push_back(outputs.back());
    }
    context->mark_non_differentiable(constants);
    context->save_for_backward(pending->inputs.keep(inputs, pending->block->recomputation->home(),
                                                    pending->block->name, pending->is_compared));
    context->saved_data["pending"] = c10::IValue::make_capsule(pending);
    context->set_materialize_grads(false);
    return outputs;
  }

  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    const auto capsule = context->saved_data["pending"].toCapsule();
    const Pending& pending = static_cast<const Pending&>(*capsule);
    check_accumulates(pending.block->name);
    check_parameters(pending);
    const Tensors inputs = pending.inputs.restore(context->get_saved_variables());
    const Tensors outputs = pending.block->recomputation->measures() ? measure_again(pending, inputs)
                                                                     : compute_again(pending, inputs);
    Tensors roots, seeds;
    for (size_t index = 0; index < outputs.size(); ++index) {
      if (!outputs[index].defined() || !outputs[index].requires_grad() || !gradients[index].defined())
        continue;
      roots.push_back(outputs[index]);
      seeds.push_back(gradients[index]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, seeds);
    Tensors results(2);  // of `pending` and `inputs`
    for (const at::Tensor& input : inputs) {
      if (input.defined()) results.push_back(input.grad());
    }
    if (pending.has_anchor) results.emplace_back();
    return results;
  }
};

bool requires_grad(const Tensors& tensors) {
  return std::ranges::any_of(tensors,
                             [](const at::Tensor& each) { return each.defined() && each.requires_grad(); });
}

}  // namespace

InsideBlock::InsideBlock() : InsideBlock(depth) {}
InsideBlock::InsideBlock(int outer) : before_(std::exchange(depth, outer + 1)) {}
InsideBlock::~InsideBlock() {
  depth = before_;
}

bool is_recomputed(const Block& block, const Tensors& inputs) {
  const bool is_differentiated =
      c10::GradMode::is_enabled() && (requires_grad(inputs) || requires_grad(block.parameters));
  return is_differentiated && block.recomputation->chooses(block.name, depth > 0);
}

Tensors run_block(const std::shared_ptr<const Block>& block, const BlockFunction& function,
                  const Tensors& inputs) {
  if (!is_recomputed(*block, inputs)) {
    const InsideBlock inside;
    return function(inputs);
  }
  auto pending = c10::make_intrusive<Pending>();
  pending->block = block;
  pending->function = function;
  pending->outer_depth = depth;
  pending->has_anchor = !requires_grad(inputs);
  Tensors defined = inputs;
  std::erase_if(defined, [](const at::Tensor& each) { return !each.defined(); });
  if (pending->has_anchor) defined.push_back(at::zeros({}).set_requires_grad(true));
  return RecomputedBlock::apply(pending, inputs, at::TensorList(defined));
}

}  // namespace zerorun
