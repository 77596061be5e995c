#include "zero/deferred_recorder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/heap.h"
#include "zero/deferred_init.h"
#include "zero/deferred_runs.h"
#include "zero/operator_stack.h"
#include "zero/operator_traits.h"

namespace zerorun {
namespace {

const char* const kNoMemory =
    "This tensor has no values yet: it was built under zerorun::DeferredInit (Python: zero.Init), and its "
    "memory was accessed without an operator (data_ptr(), torch::save, torch::tensor() of a vector). Open a "
    "GatheredParameters scope around the access (Python), initialise it by operators that do not read it, "
    "build it outside the DeferredInit scope or under a zerorun::InterceptionPause within, or wait until "
    "zerorun::initialize() has computed its values";

void forget(StorageOwner* owner) {
  delete static_cast<DeferredOwner*>(owner);
}

at::Generator generator_of(const torch::jit::Stack& arguments) {
  for (const c10::IValue& value : arguments) {
    if (value.isGenerator() && value.toGenerator().defined()) return value.toGenerator();
  }
  return at::detail::getDefaultCPUGenerator();
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

bool is_clone(const c10::OperatorHandle& op) {
  return op.operator_name().name == "aten::clone";
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
    refuse_deferred(op, "it needs a larger storage");
  }
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

// Throws if autograd, which does not see recorded operators, would refuse the operator: a leaf that requires
// a gradient may not be changed in place.
void check_leaves(const std::vector<TapeSlot>& deferred, const torch::jit::Stack& values,
                  bool differentiable) {
  for (const TapeSlot& slot : deferred) {
    if (!slot.written) continue;
    torch::autograd::check_inplace(tensor_at(values, slot.index, slot.item), differentiable);
  }
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
      put_tensor(seen.values, index, item, values);
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
  for (const TapeSlot& slot : seen.deferred) put_tensor(entry.arguments, slot.index, slot.item, at::Tensor());
  for (const at::Tensor& tensor : seen.real) {
    if (tensor.is_inference()) {
      refuse_deferred(op, "it also reads an inference tensor, whose changes cannot be tracked");
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
  if (all_plain(results)) {
    const int64_t bytes = defer_results(entry, seen.values, results);
    if (entry.random && bytes >= kLargeBlock) return_freed_memory();  // the memory of the drawn values
    tape_.add(std::move(entry));
  }
  give_results(*stack, seen.values.size(), std::move(results));
}

void DeferredRecorder::record_deferred(const c10::OperatorHandle& op, const Arguments& seen,
                                       torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  if (seen.foreign)
    refuse_deferred(op, "it also has tensors of an engine, or writes to tensors of another scope");
  if (!returns_tensors_only(schema) && !schema.returns().empty()) {
    refuse_deferred(op, "it writes them and gives the host a value");
  }
  if (!building_ && seen.differentiable && c10::GradMode::is_enabled() && !only_copies(op)) {
    refuse_deferred(
        op, "it is recorded for a backward pass, as if the model was in use",
        "Call initialize() before forward; switch autograd off in an initialisation (torch::NoGradGuard; "
        "Python: torch.no_grad())");
  }
  if (seen.writes_real) refuse_deferred(op, "it would write them to a tensor that has memory");
  check_leaves(seen.deferred, seen.values, seen.differentiable);

  InterceptionPause pause;
  TapeOperator entry = new_entry(op, seen);
  torch::jit::Stack results;
  if (is_random(op)) {
    if (!is_random_fill(op)) refuse_deferred(op, "how many random numbers it draws could depend on them");
    entry.random = save_state(generator_of(seen.values));
    results = run_on_scratch(op, seen.values);
  } else {
    results = foretell(op, seen.values, seen.deferred);
  }
  defer_results(entry, seen.values, results);
  tape_.add(std::move(entry));
  give_results(*stack, seen.values.size(), std::move(results));
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
    if (!argument) refuse_deferred(entry.op, "a result of it shares memory with an argument");
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
    put_tensor(results, index, item, std::move(deferred));
  });
  return bytes;
}

}  // namespace zerorun
