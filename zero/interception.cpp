#include "zero/interception.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/error.h"
#include "zero/cast_watch.h"
#include "zero/operator_traits.h"

namespace zerorun {
namespace {

// In LibTorch 2.11 to 2.15 no backend, alias or kernel has this key.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

// Gives access to StorageImpl's private throw-on-access flag, which no public function clears. An explicit
// instantiation of a template may name a private member.
template <bool c10::StorageImpl::*Member>
struct Reveal {
  friend bool c10::StorageImpl::*throw_on_access_flag() { return Member; }
};
bool c10::StorageImpl::*throw_on_access_flag();
template struct Reveal<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

// The deleter of an owned storage's data pointer. The pointer's context is the storage's owner, which is told
// that the storage is gone.
void owner_tag(void* context) {
  auto* owner = static_cast<StorageOwner*>(context);
  if (owner && owner->storage_gone) owner->storage_gone(owner);
}

void set_memory(c10::StorageImpl& storage, void* data) {
  c10::DataPtr& current = storage._mutable_data_ptr_no_checks();
  void* owner = current.release_context();  // else replacing the pointer would call owner_tag()
  storage.*throw_on_access_flag() = data == nullptr && storage.nbytes() > 0;
  storage.set_data_ptr_noswap({data, owner, &owner_tag, current.device()});
}

c10::StorageImpl& end_ownership(const c10::Storage& storage) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  impl.set_allocator(nullptr);
  impl._mutable_data_ptr_no_checks().release_context();  // else replacing the pointer would call owner_tag()
  return impl;
}

c10::DispatchKeySet backend_of(const c10::Storage& storage) {
  const c10::Device device = storage.device();
  return c10::DispatchKeySet(device.is_cuda()   ? c10::DispatchKey::CUDA
                             : device.is_meta() ? c10::DispatchKey::Meta
                                                : c10::DispatchKey::CPU);
}

at::Tensor view_with(c10::DispatchKeySet keys, const c10::Storage& storage, at::ScalarType dtype,
                     at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

thread_local OperatorRecorder* current_recorder = nullptr;

using TouchedList = c10::SmallVector<Touched, 6>;

void add(TouchedList& touched, const at::Tensor& tensor, bool written) {
  StorageOwner* owner = owner_of(tensor);
  if (!owner) return;
  for (Touched& known : touched) {
    if (known.owner != owner) continue;
    known.written |= written;
    known.several = true;
    return;
  }
  touched.push_back({owner, written, false, &tensor});
}

// native_batch_norm and related operators write to these arguments, but their schemas do not say so.
bool is_running_statistic(const std::string& argument) {
  return argument == "running_mean" || argument == "running_var";
}

void collect(TouchedList& touched, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  auto values = torch::jit::last(stack, arguments.size());
  for (size_t index = 0; index < arguments.size(); ++index) {
    const c10::IValue& value = values[index];
    if (!value.isTensor() && !value.isList()) continue;
    const c10::AliasInfo* alias = arguments[index].alias_info();
    const bool written = (alias && alias->isWrite()) || is_running_statistic(arguments[index].name());
    if (value.isTensor()) {
      add(touched, value.toTensor(), written);
      continue;
    }
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor()) {
        add(touched, item.toTensor(), written);
      } else if (!item.isNone()) {
        break;  // a list of numbers
      }
    }
  }
}

class Entered {
 public:
  Entered(OperatorListener& listener, const c10::OperatorHandle& op, std::span<const Touched> touched)
      : listener_(listener), touched_(touched) {
    listener_.enter(op, touched_);
  }
  ~Entered() { listener_.leave(touched_); }

 private:
  OperatorListener& listener_;
  std::span<const Touched> touched_;
};

void run_entered(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack,
                 std::span<Touched> touched) {
  OperatorListener* listener = touched.front().owner->listener;
  auto others = std::partition(touched.begin(), touched.end(),
                               [&](const Touched& item) { return item.owner->listener == listener; });
  Entered entered(*listener, op, {touched.begin(), others});
  if (others != touched.end()) {
    run_entered(op, below, stack, {others, touched.end()});
  } else {
    op.redispatchBoxed(below, stack);
  }
}

// Whether this is the copy that autocast makes of one tensor.
bool is_cast(const c10::OperatorHandle& op, const TouchedList& touched) {
  if (touched.size() != 1 || !CastWatch::is_in_autocast(touched.front().tensor->device())) return false;
  static const c10::OperatorHandle copy =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "");
  return op == copy;
}

void run_cast(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack,
              std::span<Touched> touched) {
  const at::Tensor source = *touched.front().tensor;
  OperatorListener* listener = touched.front().owner->listener;
  run_entered(op, below, stack, touched);
  const at::Tensor& copy = stack->back().toTensor();
  if (source.scalar_type() == at::kFloat &&
      copy.scalar_type() == at::autocast::get_autocast_dtype(copy.device().type()))
    listener->cast(source, copy);
}

// Whether the operator reads only sizes, strides and types. It does if its schema says that it returns a
// view, or if it is one of the operators named below.
bool touches_no_memory(const c10::FunctionSchema& schema) {
  if (schema.is_mutable()) return false;
  const auto& returns = schema.returns();
  const bool is_view =
      !returns.empty() && std::all_of(returns.begin(), returns.end(),
                                      [](const auto& result) { return result.alias_info() != nullptr; });
  if (is_view) return true;
  const std::string& name = schema.name();
  static constexpr std::string_view metadata_only[] = {
      "aten::_unsafe_view", "aten::is_same_size",
      "aten::is_set_to",    "aten::_has_same_storage_numel",
      "aten::result_type",  "aten::_has_compatible_shallow_copy_type"};
  return name.ends_with("_like") || name.starts_with("aten::new_") || name.starts_with("aten::sym_") ||
         std::find(std::begin(metadata_only), std::end(metadata_only), name) != std::end(metadata_only);
}

// With cuDNN these operators read the storages of weights directly. So the fallback must see the whole
// operator, although it calls others.
bool reads_storages(const std::string& name) {
  static constexpr std::string_view recurrent[] = {"aten::lstm", "aten::gru", "aten::rnn_tanh",
                                                   "aten::rnn_relu"};
  return std::find(std::begin(recurrent), std::end(recurrent), name) != std::end(recurrent);
}

bool needs_no_memory_itself(const c10::OperatorHandle& op) {
  return touches_no_memory(op.schema()) ||
         (only_calls_others(op) && !reads_storages(op.operator_name().name));
}

// Whether install_interception() would have let the operator pass, had it been defined by then. Remembers the
// operators that it would not: the answer takes longer than everything else here.
bool may_pass(const c10::OperatorHandle& op) {
  thread_local std::array<const c10::OperatorName*, 256> stopped = {};
  const c10::OperatorName* name = &op.operator_name();
  auto& known = stopped[reinterpret_cast<uintptr_t>(name) / 64 % stopped.size()];
  if (known == name) return false;
  if (needs_no_memory_itself(op)) return true;
  known = name;
  return false;
}

OperatorRule* rule_of(const TouchedList& touched) {
  for (const Touched& item : touched) {
    if (item.owner->rule) return item.owner->rule;
  }
  return nullptr;
}

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (may_pass(op)) {
    op.redispatchBoxed(below, stack);
    return;
  }
  TouchedList touched;
  collect(touched, op, *stack);
  if (OperatorRule* rule = rule_of(touched)) {
    rule->run(op, stack);
    return;
  }
  OperatorRecorder* recorder = current_recorder;
  bool writes = false;  // to a tensor of `recorder`, which therefore records the operator
  for (const Touched& item : touched) {
    if (!item.owner->recorder || writes) continue;
    recorder = item.owner->recorder;
    writes = item.written;
  }
  if (recorder) {
    recorder->record(op, below, stack);
  } else if (touched.empty()) {
    op.redispatchBoxed(below, stack);
  } else if (is_cast(op, touched)) {
    run_cast(op, below, stack, touched);
  } else {
    run_entered(op, below, stack, touched);
  }
}

// For operators that touch no memory, or only call others, unless a rule takes them.
void on_operator_for_rules(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  TouchedList touched;
  collect(touched, op, *stack);
  if (OperatorRule* rule = rule_of(touched)) {
    rule->run(op, stack);
  } else {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  }
}

constexpr const char* kTakenByRules[] = {"aten::linear", "aten::matmul", "aten::slice.Tensor"};

std::unique_ptr<torch::Library> make_library(const std::string& name) {
  return std::make_unique<torch::Library>(torch::Library::IMPL, name, std::optional(kKey), __FILE__,
                                          __LINE__);
}

// The registrations of kTakenByRules, which intercept_for_rules() replaces. Never destroyed, like those of
// install_interception().
std::unique_ptr<torch::Library>& for_rules() {
  static auto& library = *new std::unique_ptr<torch::Library>(make_library("aten"));
  return library;
}

}  // namespace

void intercept_for_rules() {
  install_interception();
  static std::once_flag once;
  std::call_once(once, [] {
    for_rules() = nullptr;  // ends the earlier registrations
    for_rules() = make_library("aten");
    for (const char* name : kTakenByRules)
      for_rules()->impl(name, torch::CppFunction::makeFromBoxedFunction<&on_operator_for_rules>());
  });
}

bool interception_key_is_free() {
  return !c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey) &&
         c10::Dispatcher::singleton().getAllOpNamesForDispatchKey(kKey).empty();
}

void install_interception() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!interception_key_is_free()) {
      throw InternalError("dispatch key " + std::string(c10::toString(kKey)) +
                          ", by which the engine intercepts operators on parameters, is already used by "
                          "LibTorch or another library of this program");
    }
    // The registrations end when these objects are destroyed. The process needs the registrations until it
    // exits, so the objects are never destroyed.
    static auto& libraries = *new std::map<std::string, std::unique_ptr<torch::Library>>;
    static auto& all = *make_library("_").release();
    auto library = [](const c10::OperatorName& name) -> torch::Library& {
      if (std::ranges::find(kTakenByRules, c10::toString(name)) != std::end(kTakenByRules))
        return *for_rules();
      const std::string folder = name.name.substr(0, name.name.find("::"));
      auto& entry = libraries[folder];
      if (!entry) entry = make_library(folder);
      return *entry;
    };
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>());
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op || !needs_no_memory_itself(*op)) continue;
      library(name).impl(c10::toString(name).c_str(), torch::CppFunction::makeFallthrough());
    }
  });
}

c10::Storage make_owned_storage(StorageOwner& owner, int64_t nbytes, c10::Device device,
                                const std::string& message) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), c10::SymInt(nbytes),
                       c10::DataPtr(nullptr, &owner, &owner_tag, device), &owner, false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return storage;
}

void give_memory(const c10::Storage& storage, void* data) {
  set_memory(*storage.unsafeGetStorageImpl(), data);
}

void take_memory(const c10::Storage& storage) {
  set_memory(*storage.unsafeGetStorageImpl(), nullptr);
}

void leave_memory(const c10::Storage& storage, c10::DataPtr memory) {
  c10::StorageImpl& impl = end_ownership(storage);
  impl.*throw_on_access_flag() = false;
  impl.set_data_ptr_noswap(std::move(memory));
}

void leave_without_memory(const c10::Storage& storage, const std::string& message) {
  c10::StorageImpl& impl = end_ownership(storage);
  impl.release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  impl.set_data_ptr_noswap({nullptr, impl.device()});
}

c10::DataPtr StorageOwner::allocate(size_t) {
  throw InternalError("the storage of a parameter does not grow");
}

void StorageOwner::copy_data(void* target, const void* source, size_t bytes) const {
  default_copy_data(target, source, bytes);
}

c10::DeleterFnPtr StorageOwner::raw_deleter() const {
  return &owner_tag;
}

StorageOwner* owner_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage()) return nullptr;
  c10::Allocator* allocator = impl->unsafe_storage().unsafeGetStorageImpl()->allocator();
  if (!allocator || allocator->raw_deleter() != &owner_tag) return nullptr;
  return static_cast<StorageOwner*>(allocator);
}

at::Tensor marked_view(const c10::Storage& storage, at::ScalarType dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset) {
  return view_with(backend_of(storage).add(kKey), storage, dtype, sizes, strides, offset);
}

at::Tensor without_memory(const at::Tensor& like, const std::string& message) {
  int64_t end = like.numel() > 0 ? like.storage_offset() + 1 : 0;
  for (int64_t dim = 0; like.numel() > 0 && dim < like.dim(); ++dim)
    end += (like.size(dim) - 1) * like.stride(dim);
  const c10::Storage storage(c10::Storage::use_byte_size_t(),
                             c10::SymInt(end * static_cast<int64_t>(like.element_size())),
                             c10::DataPtr(nullptr, like.device()), nullptr, false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return view_with(backend_of(storage), storage, like.scalar_type(), like.sizes(), like.strides(),
                   like.storage_offset());
}

void set_values(const at::Tensor& parameter, const at::Tensor& view) {
  // LibTorch's set_data() does not add a dispatch key to a tensor on the meta device, nor moves one there.
  if (view.is_meta()) return parameter.unsafeGetTensorImpl()->shallow_copy_from(view.getIntrusivePtr());
  parameter.set_data(view);
}

RecordingScope::RecordingScope(OperatorRecorder& recorder)
    : outer_(std::exchange(current_recorder, &recorder)),
      was_included_(c10::impl::tls_is_dispatch_key_included(kKey)) {
  install_interception();
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

RecordingScope::~RecordingScope() {
  current_recorder = outer_;
  c10::impl::tls_set_dispatch_key_included(kKey, was_included_);
}

bool is_recording() {
  return current_recorder != nullptr;
}

InterceptionPause::InterceptionPause() : was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kKey, true);
}

InterceptionPause::~InterceptionPause() {
  c10::impl::tls_set_dispatch_key_excluded(kKey, was_excluded_);
}

}  // namespace zerorun
