// Records the operators of a DeferredInit scope instead of running them, and returns tensors without memory
// as their results. Real tensors, and operators on real tensors alone, are not affected. What an operator
// tells the host is computed. Throws UserError for operators whose tensors cannot be foretold without values.
// Owned by the scope and its deferred tensors together; only the building thread calls it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "zero/interception.h"
#include "zero/operator_tape.h"

namespace zerorun {

class DeferredRecorder;

/// The owner of a deferred tensor's storage.
struct DeferredOwner : StorageOwner {
  std::shared_ptr<DeferredRecorder> tape_owner;
  StorageId storage = 0;
};

/// Null when the tensor is not deferred.
const DeferredOwner* deferred_owner_of(const at::Tensor& tensor);
/// The deferred tensor's storage and geometry on the tape.
TapeTensor tape_tensor_of(const at::Tensor& deferred, const DeferredOwner& owner);

class DeferredRecorder final : public OperatorRecorder,
                               public std::enable_shared_from_this<DeferredRecorder> {
 public:
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override;

  const OperatorTape& tape() const { return tape_; }
  /// Call this when the scope ends. From then on, an operator that autograd would record counts as a use of
  /// the model and throws, unless it only copies.
  void end_building() { building_ = false; }

 private:
  struct Arguments;

  Arguments look_at(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  TapeOperator new_entry(const c10::OperatorHandle& op, const Arguments& seen) const;
  void record_factory(const c10::OperatorHandle& op, c10::DispatchKeySet below, const Arguments& seen,
                      torch::jit::Stack* stack);
  void record_deferred(const c10::OperatorHandle& op, const Arguments& seen, torch::jit::Stack* stack);

  /// Replaces `results` by deferred tensors, adds these to `entry`, and frees the memory of the results.
  /// Returns the size in bytes of the deferred tensors' storages.
  int64_t defer_results(TapeOperator& entry, const torch::jit::Stack& arguments, torch::jit::Stack& results);
  c10::Storage new_storage(int64_t nbytes);

  OperatorTape tape_;
  bool building_ = true;
};

}  // namespace zerorun
