// Records the operators of a build scope instead of running them, and returns tensors without memory as their
// results. Operators on real tensors only run as usual; an operator that needs values which do not exist yet
// throws a UserError. Owned jointly by the deferred tensors; called by the building thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "zero/interception.h"
#include "zero/operator_tape.h"

namespace zerorun {

class DeferredRecorder;

/// Owns the storage of a deferred tensor.
struct DeferredOwner : StorageOwner {
  std::shared_ptr<DeferredRecorder> tape_owner;
  StorageId storage = 0;
};

/// Null if the tensor is not deferred.
const DeferredOwner* deferred_owner_of(const at::Tensor& tensor);
/// The deferred tensor as the tape knows it.
TapeTensor tape_tensor_of(const at::Tensor& deferred, const DeferredOwner& owner);

class DeferredRecorder : public OperatorRecorder, public std::enable_shared_from_this<DeferredRecorder> {
 public:
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override;

  const OperatorTape& tape() const { return tape_; }
  /// Ends the scope: from now on an operator that autograd would differentiate counts as a use of the model.
  void end_building() { building_ = false; }

 private:
  struct Arguments;

  Arguments look_at(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  TapeOperator new_entry(const c10::OperatorHandle& op, const Arguments& seen) const;
  void record_factory(const c10::OperatorHandle& op, c10::DispatchKeySet below, const Arguments& seen,
                      torch::jit::Stack* stack);
  void record_deferred(const c10::OperatorHandle& op, const Arguments& seen, torch::jit::Stack* stack);

  /// Replaces results with deferred tensors, which it records in `entry`, and frees the results' memory.
  int64_t defer_results(TapeOperator& entry, const torch::jit::Stack& arguments, torch::jit::Stack& results);
  c10::Storage new_storage(int64_t nbytes);

  OperatorTape tape_;
  bool building_ = true;
};

}  // namespace zerorun
