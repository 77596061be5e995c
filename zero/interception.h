// Intercepts operators that touch a parameter, without changes to the model. Only interception.cpp knows the
// dispatch key. A marked tensor carries the key DeferredInit, which LibTorch has for code outside of LibTorch
// and dispatches before autograd and autocast. Views inherit the key; results and gradients do not. A boxed
// fallback on that key sees exactly the operators that touch marked tensors, forward and backward, on any
// thread. View operators bypass the fallback, since they touch no memory, and so do operators that only call
// others, which are intercepted instead.
//
// [Note: throw on access] A storage without memory throws a clear error on any access that is not an
// operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>

#include <span>

namespace zerorun {

class OperatorListener;
class OperatorRecorder;
class OperatorRule;

/// The owner of the storage of marked tensors, set as the storage's allocator although it allocates nothing.
/// The allocator is the only field of a storage that one thread may read while another thread assigns memory
/// to the storage.
struct StorageOwner : c10::Allocator {
  // Exactly one of `listener` and `recorder` is set.
  OperatorListener* listener = nullptr;
  OperatorRecorder* recorder = nullptr;
  /// Set if operators on the storage's tensors have another meaning than their own. Then neither `listener`
  /// nor `recorder` is told of them.
  OperatorRule* rule = nullptr;
  /// Called when the storage is destroyed; may be null.
  void (*storage_gone)(StorageOwner*) = nullptr;

  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* target, const void* source, size_t bytes) const override;
  /// Distinguishes owners from other allocators.
  c10::DeleterFnPtr raw_deleter() const override;
};

struct Touched {
  StorageOwner* owner;
  bool written;              // the operator writes to the storage
  bool several;              // more than one argument is on it
  const at::Tensor* tensor;  // the first argument on the storage; valid in enter() only
};

/// Is called before and after each operator that touches storages whose owners have this listener, on any
/// thread. Operators may nest.
class OperatorListener {
 public:
  /// Makes the data of all `touched` accessible until leave(). When it throws, the operator does not run.
  virtual void enter(const c10::OperatorHandle& op, std::span<const Touched> touched) = 0;
  virtual void leave(std::span<const Touched> touched) noexcept = 0;
  /// Called after an operator by which autocast has copied a touched tensor, in a thread with a CastWatch
  /// (zero/cast_watch.h).
  virtual void cast(const at::Tensor& /*source*/, const at::Tensor& /*copy*/) {}

 protected:
  ~OperatorListener() = default;
};

/// Is called instead of an operator, which runs only if the recorder runs it.
class OperatorRecorder {
 public:
  /// Replaces the arguments on the stack by results. `below`: the keys to redispatch to.
  virtual void record(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) = 0;

 protected:
  ~OperatorRecorder() = default;
};

/// Is called instead of an operator that touches a storage with this rule, on any thread.
class OperatorRule {
 public:
  /// Replaces the arguments on the stack by results.
  virtual void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) = 0;

 protected:
  ~OperatorRule() = default;
};

/// Registers the fallback, once per process. Throws InternalError if LibTorch or another library uses the
/// key.
void install_interception();
/// From now on rules are called for `slice` too, and for `linear` and `matmul`, and not for what these call.
void intercept_for_rules();
/// Whether neither a fallback nor a kernel is registered for the key yet.
bool interception_key_is_free();

/// A storage of `nbytes` on `device`, without memory, that belongs to `owner`; access throws `message`.
c10::Storage make_owned_storage(StorageOwner& owner, int64_t nbytes, c10::Device device,
                                const std::string& message);
/// A tensor without memory that belongs to nobody, and is otherwise like `like`; access throws `message`.
at::Tensor without_memory(const at::Tensor& like, const std::string& message);
/// Gives the storage memory, or takes its memory away. While it has no memory, any access throws the message
/// passed to make_owned_storage().
void give_memory(const c10::Storage& storage, void* data);
void take_memory(const c10::Storage& storage);
/// The next two functions end the owner's ownership of the storage. leave_memory() gives the storage
/// `memory`. After leave_without_memory() any access throws `message`.
void leave_memory(const c10::Storage& storage, c10::DataPtr memory);
void leave_without_memory(const c10::Storage& storage, const std::string& message);

/// Null if the tensor's storage has no owner.
StorageOwner* owner_of(const at::Tensor& tensor);

/// A marked tensor on the storage; `offset` in elements.
at::Tensor marked_view(const c10::Storage& storage, at::ScalarType dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset);

/// Makes `parameter` a tensor on the memory of `view`, and leaves it the same autograd leaf.
void set_values(const at::Tensor& parameter, const at::Tensor& view);

/// During its lifetime every operator of this thread goes to `recorder`, regardless of its arguments.
class RecordingScope {
 public:
  explicit RecordingScope(OperatorRecorder& recorder);
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  OperatorRecorder* outer_;
  bool was_included_;
};

/// Whether this thread is inside a RecordingScope.
bool is_recording();

/// During its lifetime operators of this thread run as if no tensor was marked and no scope recorded them.
class InterceptionPause {
 public:
  InterceptionPause();
  ~InterceptionPause();
  InterceptionPause(const InterceptionPause&) = delete;
  InterceptionPause& operator=(const InterceptionPause&) = delete;

 private:
  bool was_excluded_;
};

}  // namespace zerorun
