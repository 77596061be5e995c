#include "zero/deferred_runs.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include <utility>

#include "base/error.h"
#include "zero/deferred_init.h"
#include "zero/operator_stack.h"
#include "zero/operator_traits.h"

namespace zerorun {
namespace {

bool is_plain(const at::Tensor& tensor) {
  return (tensor.is_cpu() || tensor.is_meta()) && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg();
}

// Numbers of the program stay as they are, as LibTorch combines them with tensors of every device. On Meta a
// number would fail in a Python process, where LibTorch has kernels written in Python.
at::Tensor meta_like(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::DeviceType::Meta));
}

at::Tensor zeros_for_deferred(const at::Tensor& tensor) {
  return is_deferred(tensor) ? allocate_like(tensor) : tensor;
}

// Throws if the trial run of an operator had effects that the tape cannot record.
void check_trial(const c10::OperatorHandle& op, const std::vector<TapeSlot>& deferred,
                 const torch::jit::Stack& inputs, const torch::jit::Stack& results) {
  for (const TapeSlot& slot : deferred) {
    const at::Tensor& input = tensor_at(inputs, slot.index, slot.item);
    if (slot.written && input.sizes() != at::IntArrayRef(slot.tensor.sizes)) {
      refuse_deferred(op, "it would resize the tensor");
    }
    for_each_tensor(results, [&](size_t index, std::optional<size_t>, const at::Tensor& result) {
      if (!op.schema().returns()[index].alias_info() && input.is_alias_of(result)) {
        refuse_deferred(op, "a result of it shares memory with an argument");
      }
    });
  }
  if (!all_plain(results)) refuse_deferred(op, "its result is not a dense tensor");
}

template <typename StandIn>
void run_on(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, torch::jit::Stack* stack,
            StandIn stand_in) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  InterceptionPause pause;
  torch::jit::Stack results = replace_tensors(arguments, stand_in);
  op.callBoxed(results);
  give_results(*stack, arguments.size(), std::move(results));
}

}  // namespace

void refuse_deferred(const c10::OperatorHandle& op, const std::string& reason, const std::string& remedy) {
  throw UserError(
      "operator " + c10::toString(op.operator_name()) +
      " on a tensor that was built under zerorun::DeferredInit (Python: zero.Init) and has no values yet: " +
      reason + ". " + remedy);
}

bool all_plain(const torch::jit::Stack& results) {
  bool plain = true;
  for_each_tensor(results, [&](size_t, std::optional<size_t>, const at::Tensor& tensor) {
    plain = plain && is_plain(tensor);
  });
  return plain;
}

void redirect_to_meta(const c10::OperatorHandle& op, torch::jit::Stack& arguments) {
  for (c10::IValue& value : arguments) {
    if (!value.isDevice()) continue;
    if (!value.toDevice().is_cpu()) {
      throw UserError(
          "operator " + c10::toString(op.operator_name()) + " under zerorun::DeferredInit: device " +
          value.toDevice().str() +
          " was asked for, expected cpu. Build the model on the CPU; zerorun::initialize() places it");
    }
    value = c10::Device(c10::DeviceType::Meta);
  }
}

torch::jit::Stack foretell(const c10::OperatorHandle& op, const torch::jit::Stack& values,
                           const std::vector<TapeSlot>& deferred) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  torch::jit::Stack inputs = replace_tensors(values, meta_like);
  redirect_to_meta(op, inputs);
  torch::jit::Stack results = inputs;
  try {
    op.callBoxed(results);
  } catch (const c10::NotImplementedError&) {
    if (only_writes_in_place(op.schema())) return torch::jit::Stack(op.schema().returns().size());
    if (op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output)) {
      refuse_deferred(op, "the size of its result depends on them");
    }
    inputs = replace_tensors(values, zeros_for_deferred);
    results = inputs;
    op.callBoxed(results);
  }
  check_trial(op, deferred, inputs, results);
  return results;
}

torch::jit::Stack run_on_scratch(const c10::OperatorHandle& op, torch::jit::Stack arguments) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  arguments.front() = allocate_like(arguments.front().toTensor());
  op.callBoxed(arguments);
  return arguments;
}

void run_on_values(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                   torch::jit::Stack* stack) {
  run_on(op, arguments, stack,
         [](const at::Tensor& tensor) { return is_deferred(tensor) ? make_tensor(tensor) : tensor; });
}

void run_on_meta(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                 torch::jit::Stack* stack) {
  run_on(op, arguments, stack, meta_like);
}

}  // namespace zerorun
