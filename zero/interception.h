// Intercepts operators that use a parameter, without changing the model; only this file knows the dispatch
// key. A marked tensor carries LibTorch's unused key Fake, below autograd and above the backends; views
// inherit it, results and gradients do not. A boxed fallback on that key sees exactly the operators that use
// marked tensors, in forward and backward and in any thread. It ignores view operators, which use no memory.
// [Note: throw on access] A storage without memory throws a clear error on any access without an operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>

#include <span>

namespace zerorun {

class OperatorListener;
class OperatorRecorder;

/// Owns the storage of marked tensors, as its allocator, which allocates nothing: a thread can read a
/// storage's allocator while another thread gives the storage memory.
struct StorageOwner : c10::Allocator {
  // Exactly one of the two is set.
  OperatorListener* listener = nullptr;
  OperatorRecorder* recorder = nullptr;
  /// Called when the storage is destroyed, unless null.
  void (*storage_gone)(StorageOwner*) = nullptr;

  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* target, const void* source, size_t bytes) const override;
  /// Tells owners from other allocators.
  c10::DeleterFnPtr raw_deleter() const override;
};

struct Touched {
  StorageOwner* owner;
  bool written;              // by the operator, as its schema says
  const at::Tensor* tensor;  // the first argument on the storage; valid only in enter()
};

/// Called before and after each operator that uses storages of its owners. Any thread; operators nest.
class OperatorListener {
 public:
  /// Makes the data of all `touched` accessible until leave(). If it throws, the operator does not run.
  virtual void enter(const c10::OperatorHandle& op, std::span<const Touched> touched) = 0;
  virtual void leave(std::span<const Touched> touched) noexcept = 0;

 protected:
  ~OperatorListener() = default;
};

/// Replaces operators: they run only if it runs them.
class OperatorRecorder {
 public:
  /// Replaces the arguments on the stack with results. `below`: the keys to redispatch to.
  virtual void record(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) = 0;

 protected:
  ~OperatorRecorder() = default;
};

/// Installs the fallback, once in a process. Throws InternalError if LibTorch uses the key itself.
void install_interception();
/// Whether the key has no fallback yet.
bool interception_key_is_free();

/// A storage of `nbytes` on `device` without memory, owned by `owner`; access throws `message`.
c10::Storage make_owned_storage(StorageOwner& owner, int64_t nbytes, c10::Device device,
                                const std::string& message);
/// Puts memory behind the storage, or takes it away (then access throws the message).
void give_memory(const c10::Storage& storage, void* data);
void take_memory(const c10::Storage& storage);
/// These end the ownership: the storage keeps `memory`, or has none, and access throws `message`.
void leave_memory(const c10::Storage& storage, c10::DataPtr memory);
void leave_without_memory(const c10::Storage& storage, const std::string& message);

/// Null if the tensor's storage has no owner.
StorageOwner* owner_of(const at::Tensor& tensor);

/// A marked tensor on the storage; `offset` in elements.
at::Tensor marked_view(const c10::Storage& storage, at::ScalarType dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset);

/// While it lives, every operator of this thread goes to `recorder`, whatever its arguments are.
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

/// Whether this thread is in a RecordingScope.
bool is_recording();

/// While it lives, operators of this thread run without interception and recording.
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
