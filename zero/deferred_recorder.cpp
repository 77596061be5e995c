#include "zero/deferred_recorder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/heap.h"
#include "zero/deferred_init.h"
#include "zero/operator_traits.h"

namespace zerorun {
namespace {

const char* const kNoMemory =
    "This tensor has no values yet: it was built under zerorun::DeferredInit (Python: zero.Init), and its "
    "memory was accessed without an operator (data_ptr(), torch::save, torch::tensor() of a vector). Open a "
    "GatheredParameters scope around the access (Python), initialise it by operators that do not read it, "
    "build it outside the DeferredInit scope or under a zerorun::InterceptionPause within, or wait until "
    "zerorun::initialize() has computed its values";

const char* const kRemedy =
    "Initialise this parameter without reading it, or build the module outside the DeferredInit scope";

[[noreturn]] void refuse(const c10::OperatorHandle& op, const std::string& reason,
                         const std::string& remedy = kRemedy) {
  throw UserError(
      "operator " + c10::toString(op.operator_name()) +
      " on a tensor that was built under zerorun::DeferredInit (Python: zero.Init) and has no values yet: " +
      reason + ". " + remedy);
}

void forget(StorageOwner* owner) {
  delete static_cast<DeferredOwner*>(owner);
}

// Calls `visit(index, item, tensor)` for each defined tensor among the values.
template <typename Visit>
void for_each_tensor(c10::ArrayRef<c10::IValue> values, Visit visit) {
  for (size_t index = 0; index < values.size(); ++index) {
    if (values[index].isTensor()) {
      if (values[index].toTensor().defined()) visit(index, std::optional<size_t>(), values[index].toTensor());
    } else if (values[index].isList()) {
      const auto items = values[index].toListRef();
      for (size_t item = 0; item < items.size(); ++item) {
        if (items[item].isTensor() && items[item].toTensor().defined()) {
          visit(index, std::optional<size_t>(item), items[item].toTensor());
        }
      }
    }
  }
}

// Puts `tensor` at position `index` of the stack, or at position `item` of the list there. Changes the list
// in place, so no other stack may share it.
void put(torch::jit::Stack& stack, size_t index, std::optional<size_t> item, at::Tensor tensor) {
  if (item) {
    stack[index].toList().set(*item, std::move(tensor));
  } else {
    stack[index] = std::move(tensor);
  }
}

torch::jit::Stack with_own_lists(const torch::jit::Stack& stack, size_t count) {
  torch::jit::Stack copy(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
  for (c10::IValue& value : copy) {
    if (value.isList()) value = value.toList().copy();
  }
  return copy;
}

std::optional<size_t> argument_named(const c10::OperatorHandle& op, std::string_view name) {
  const auto& arguments = op.schema().arguments();
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].name() == name) return index;
  }
  return {};
}

at::Generator generator_of(const torch::jit::Stack& arguments) {
  for (const c10::IValue& value : arguments) {
    if (value.isGenerator() && value.toGenerator().defined()) return value.toGenerator();
  }
  return at::detail::getDefaultCPUGenerator();
}

bool is_plain(const at::Tensor& tensor) {
  return (tensor.is_cpu() || tensor.is_meta()) && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg();
}

bool all_plain(const torch::jit::Stack& results) {
  bool plain = true;
  for_each_tensor(results, [&](size_t, std::optional<size_t>, const at::Tensor& tensor) {
    plain = plain && is_plain(tensor);
  });
  return plain;
}

// Numbers of the program stay as they are, as LibTorch combines them with tensors of every device. On Meta a
// number would fail in a Python process, where LibTorch has kernels written in Python.
at::Tensor meta_like(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::DeviceType::Meta));
}

// Replaces the device argument, which says where to put the results, by Meta.
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

bool asks_for_meta(const torch::jit::Stack& arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::IValue& value) { return value.isDevice() && value.toDevice().is_meta(); });
}

bool wants_dense(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  if (asks_for_meta(arguments)) return false;
  const auto layout = argument_named(op, "layout");
  return !layout || arguments[*layout].isNone() || arguments[*layout].toLayout() == at::kStrided;
}

// LibTorch makes a tensor of a storage by torch.empty(0).set_(storage), and reads an element of one so.
bool is_empty(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  return op.operator_name().name == "aten::empty" && arguments[0].isIntList() &&
         arguments[0].toIntVector() == std::vector<int64_t>{0};
}

// Runs t_(), set_() or resize_(), which change a tensor's sizes, strides or storage but write no values.
// Throws if resize_() needs a larger storage.
void change_view(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                 const std::vector<TapeSlot>& deferred, torch::jit::Stack* stack) {
  InterceptionPause pause;
  const at::Tensor self = torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
  try {
    op.redispatchBoxed(below, stack);
  } catch (const c10::Error&) {
    if (deferred.empty() || deferred.front().index != 0 || !is_resize(op)) throw;
    const TapeTensor& before = deferred.front().tensor;  // LibTorch changes the sizes before it fails
    self.unsafeGetTensorImpl()->set_sizes_and_strides(before.sizes, before.strides, before.offset);
    refuse(op, "it needs a larger storage");
  }
}

bool is_clone(const c10::OperatorHandle& op) {
  return op.operator_name().name == "aten::clone";
}

// A copy made after the scope is for use beside the model (a reference model), so it gets values at once.
void run_clone(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  c10::IValue& argument = torch::jit::peek(*stack, 0, op.schema().arguments().size());
  argument = make_tensor(argument.toTensor());
  InterceptionPause pause;
  op.redispatchBoxed(below, stack);
}

bool writes_any(const std::vector<TapeSlot>& slots) {
  return std::any_of(slots.begin(), slots.end(), [](const TapeSlot& slot) { return slot.written; });
}

// Whether the operator only gives the host a value, or an error: item(), equal(), a condition in the code.
bool tells_host(const c10::OperatorHandle& op, const std::vector<TapeSlot>& deferred) {
  return !returns_tensors_only(op.schema()) && !writes_any(deferred);
}

// Draws the random numbers that plain construction would draw, and discards them.
torch::jit::Stack run_on_scratch(const c10::OperatorHandle& op, torch::jit::Stack arguments) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  arguments.front() = allocate_like(arguments.front().toTensor());
  op.callBoxed(arguments);
  return arguments;
}

template <typename StandIn>
torch::jit::Stack replace_tensors(const torch::jit::Stack& values, StandIn stand_in) {
  torch::jit::Stack replaced = with_own_lists(values, values.size());
  for_each_tensor(values, [&](size_t index, std::optional<size_t> item, const at::Tensor& tensor) {
    put(replaced, index, item, stand_in(tensor));
  });
  return replaced;
}

at::Tensor zeros_for_deferred(const at::Tensor& tensor) {
  return deferred_owner_of(tensor) ? allocate_like(tensor) : tensor;
}

// Throws if autograd, which does not see recorded operators, would refuse the operator: a leaf that requires
// a gradient may not be changed in place.
void check_leaves(const std::vector<TapeSlot>& deferred, const torch::jit::Stack& values,
                  bool differentiable) {
  for (const TapeSlot& slot : deferred) {
    const c10::IValue& value = values[slot.index];
    if (!slot.written) continue;
    torch::autograd::check_inplace(slot.item ? value.toListRef()[*slot.item].toTensor() : value.toTensor(),
                                   differentiable);
  }
}

// Throws if the trial run of an operator had effects that the tape cannot record.
void check_trial(const c10::OperatorHandle& op, const std::vector<TapeSlot>& deferred,
                 const torch::jit::Stack& inputs, const torch::jit::Stack& results) {
  for (const TapeSlot& slot : deferred) {
    const c10::IValue& value = inputs[slot.index];
    const at::Tensor& input = slot.item ? value.toListRef()[*slot.item].toTensor() : value.toTensor();
    if (slot.written && input.sizes() != at::IntArrayRef(slot.tensor.sizes)) {
      refuse(op, "it would resize the tensor");
    }
    for_each_tensor(results, [&](size_t index, std::optional<size_t>, const at::Tensor& result) {
      if (!op.schema().returns()[index].alias_info() && input.is_alias_of(result)) {
        refuse(op, "a result of it shares memory with an argument");
      }
    });
  }
  if (!all_plain(results)) refuse(op, "its result is not a dense tensor");
}

// Finds the sizes, strides and dtypes of the operator's results by a trial run on Meta tensors or, if the
// operator has no Meta kernel, on zeros.
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
      refuse(op, "the size of its result depends on them");
    }
    inputs = replace_tensors(values, zeros_for_deferred);
    results = inputs;
    op.callBoxed(results);
  }
  check_trial(op, deferred, inputs, results);
  return results;
}

// Computes the values that the operator reads, for this call only: torch.nn.init.trunc_normal_ of Python asks
// whether all numbers lie within its bounds.
void run_on_values(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                   torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  InterceptionPause pause;
  torch::jit::Stack results = replace_tensors(arguments, [](const at::Tensor& tensor) {
    return deferred_owner_of(tensor) ? make_tensor(tensor) : tensor;
  });
  op.callBoxed(results);
  torch::jit::drop(*stack, arguments.size());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

// Tensors on Meta have no values for initialize() to compute (transformers loads weights into a model on
// Meta), so they are LibTorch's own.
void run_on_meta(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                 torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  InterceptionPause pause;
  torch::jit::Stack results = replace_tensors(arguments, meta_like);
  op.callBoxed(results);
  torch::jit::drop(*stack, arguments.size());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

}  // namespace

const DeferredOwner* deferred_owner_of(const at::Tensor& tensor) {
  const StorageOwner* owner = owner_of(tensor);
  return owner && owner->storage_gone == &forget ? static_cast<const DeferredOwner*>(owner) : nullptr;
}

TapeTensor tape_tensor_of(const at::Tensor& deferred, const DeferredOwner& owner) {
  const int64_t nbytes = owner.tape_owner->tape().nbytes(owner.storage);
  return {.storage = owner.storage,
          .dtype = deferred.scalar_type(),
          .sizes = deferred.sizes().vec(),
          .strides = deferred.strides().vec(),
          .offset = deferred.storage_offset(),
          .covers = deferred.storage_offset() == 0 && deferred.is_non_overlapping_and_dense() &&
                    static_cast<int64_t>(deferred.nbytes()) == nbytes};
}

// The arguments of an operator, sorted by kind.
struct DeferredRecorder::Arguments {
  torch::jit::Stack values;  // as passed, except that lists are copies
  std::vector<TapeSlot> deferred;
  std::vector<at::Tensor> real;
  bool writes_real = false;
  bool differentiable = false;
  bool foreign = false;  // has tensors of an engine, or writes to tensors of another scope
};

DeferredRecorder::Arguments DeferredRecorder::look_at(const c10::OperatorHandle& op,
                                                      const torch::jit::Stack& stack) const {
  const auto& arguments = op.schema().arguments();
  Arguments seen;
  seen.values = with_own_lists(stack, arguments.size());
  for_each_tensor(seen.values, [&](size_t index, std::optional<size_t> item, const at::Tensor& tensor) {
    const c10::AliasInfo* alias = arguments[index].alias_info();
    const bool written = alias && alias->isWrite();
    const DeferredOwner* owner = deferred_owner_of(tensor);
    if (owner && owner->tape_owner.get() == this) {
      seen.differentiable |= tensor.requires_grad();
      seen.deferred.push_back({index, item, written, tape_tensor_of(tensor, *owner)});
    } else if (owner && !written) {
      const at::Tensor values = make_tensor(tensor);  // as the other scope has them now
      seen.real.push_back(values);
      put(seen.values, index, item, values);
    } else {
      seen.foreign |= owner_of(tensor) != nullptr;
      seen.writes_real |= written;
      seen.real.push_back(tensor);
    }
  });
  return seen;
}

TapeOperator DeferredRecorder::new_entry(const c10::OperatorHandle& op, const Arguments& seen) const {
  TapeOperator entry{.op = op,
                     .arguments = with_own_lists(seen.values, seen.values.size()),
                     .deferred = seen.deferred,
                     .captured = {},
                     .made = {},
                     .random = {},
                     .default_dtype = c10::get_default_dtype_as_scalartype()};
  // Deferred tensors own the tape. If the tape held them too, it would never be destroyed.
  for (const TapeSlot& slot : seen.deferred) put(entry.arguments, slot.index, slot.item, at::Tensor());
  for (const at::Tensor& tensor : seen.real) {
    if (tensor.is_inference()) {
      refuse(op, "it also reads an inference tensor, whose changes cannot be tracked");
    }
    entry.captured.push_back({tensor, static_cast<uint32_t>(tensor._version())});
  }
  return entry;
}

void DeferredRecorder::record(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                              torch::jit::Stack* stack) {
  if (decomposes(op)) {
    op.redispatchBoxed(below, stack);
    return;
  }
  const Arguments seen = look_at(op, *stack);
  if (op.hasTag(at::Tag::inplace_view)) {
    change_view(op, below, seen.deferred, stack);
  } else if (!seen.deferred.empty() && asks_for_meta(seen.values)) {
    run_on_meta(op, seen.values, stack);
  } else if (!seen.deferred.empty() && !seen.foreign && tells_host(op, seen.deferred)) {
    run_on_values(op, seen.values, stack);
  } else if (!building_ && is_clone(op) && !seen.deferred.empty()) {
    run_clone(op, below, stack);
  } else if (!seen.deferred.empty()) {
    record_deferred(op, seen, stack);
  } else if (seen.real.empty() && returns_tensors_only(op.schema())) {
    record_factory(op, below, seen, stack);
  } else {
    InterceptionPause pause;
    op.redispatchBoxed(below, stack);
  }
}

void DeferredRecorder::record_factory(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                                      const Arguments& seen, torch::jit::Stack* stack) {
  InterceptionPause pause;
  if (!wants_dense(op, seen.values) || is_for_the_host(op) || is_empty(op, seen.values)) {
    op.redispatchBoxed(below, stack);
    return;
  }
  torch::jit::Stack on_meta = seen.values;
  redirect_to_meta(op, on_meta);  // also checks the device
  TapeOperator entry = new_entry(op, seen);
  torch::jit::Stack results = seen.values;
  if (is_random(op)) {
    entry.random = save_state(generator_of(seen.values));
    op.redispatchBoxed(below, &results);
  } else if (const auto device = argument_named(op, "device")) {
    on_meta[*device] = c10::Device(c10::DeviceType::Meta);
    try {
      op.callBoxed(on_meta);
      results = std::move(on_meta);
    } catch (const c10::NotImplementedError&) {
      op.redispatchBoxed(below, &results);
    }
  } else {
    op.redispatchBoxed(below, &results);
  }
  torch::jit::drop(*stack, seen.values.size());
  if (all_plain(results)) {
    const int64_t bytes = defer_results(entry, seen.values, results);
    if (entry.random && bytes >= kLargeBlock) return_freed_memory();  // the memory of the drawn values
    tape_.add(std::move(entry));
  }
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

void DeferredRecorder::record_deferred(const c10::OperatorHandle& op, const Arguments& seen,
                                       torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  if (seen.foreign) refuse(op, "it also has tensors of an engine, or writes to tensors of another scope");
  if (!returns_tensors_only(schema) && !schema.returns().empty()) {
    refuse(op, "it writes them and gives the host a value");
  }
  if (!building_ && seen.differentiable && c10::GradMode::is_enabled() && !only_copies(op)) {
    refuse(op, "it is recorded for a backward pass, as if the model was in use",
           "Call initialize() before forward; switch autograd off in an initialisation (torch::NoGradGuard; "
           "Python: torch.no_grad())");
  }
  if (seen.writes_real) refuse(op, "it would write them to a tensor that has memory");
  check_leaves(seen.deferred, seen.values, seen.differentiable);

  InterceptionPause pause;
  TapeOperator entry = new_entry(op, seen);
  torch::jit::Stack results;
  if (is_random(op)) {
    if (!is_random_fill(op)) refuse(op, "how many random numbers it draws could depend on them");
    entry.random = save_state(generator_of(seen.values));
    results = run_on_scratch(op, seen.values);
  } else {
    results = foretell(op, seen.values, seen.deferred);
  }
  defer_results(entry, seen.values, results);
  tape_.add(std::move(entry));
  torch::jit::drop(*stack, seen.values.size());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

c10::Storage DeferredRecorder::new_storage(int64_t nbytes) {
  auto owner = std::make_unique<DeferredOwner>();
  owner->recorder = this;
  owner->storage_gone = &forget;
  owner->tape_owner = shared_from_this();
  owner->storage = tape_.add_storage(nbytes);
  return make_owned_storage(*owner.release(), nbytes, c10::kCPU, kNoMemory);
}

int64_t DeferredRecorder::defer_results(TapeOperator& entry, const torch::jit::Stack& arguments,
                                        torch::jit::Stack& results) {
  int64_t bytes = 0;
  std::map<c10::StorageImpl*, c10::Storage> storages;  // results may share a storage
  const auto& returns = entry.op.schema().returns();
  for (size_t index = 0; index < returns.size(); ++index) {
    if (!returns[index].alias_info()) continue;
    const auto argument = aliased_argument(entry.op.schema(), index);
    if (!argument) refuse(entry.op, "a result of it shares memory with an argument");
    results[index] = arguments[*argument];
  }
  const torch::jit::Stack found = with_own_lists(results, results.size());
  for_each_tensor(found, [&](size_t index, std::optional<size_t> item, const at::Tensor& result) {
    if (returns[index].alias_info()) return;
    auto [storage, fresh] = storages.try_emplace(result.storage().unsafeGetStorageImpl());
    if (fresh) {
      const auto of_storage = static_cast<int64_t>(result.storage().nbytes());
      storage->second = new_storage(of_storage);
      bytes += of_storage;
    }
    at::Tensor deferred = marked_view(storage->second, result.scalar_type(), result.sizes(), result.strides(),
                                      result.storage_offset());
    entry.made.push_back({index, item, true, tape_tensor_of(deferred, *deferred_owner_of(deferred))});
    put(results, index, item, std::move(deferred));
  });
  return bytes;
}

}  // namespace zerorun
