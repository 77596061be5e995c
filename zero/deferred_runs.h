// Runs of an operator with something in place of deferred tensors, which have no memory: Meta tensors, zeros,
// or their values of this moment. Called by DeferredRecorder, by its thread. A run throws UserError if the
// operator needs values that the tensors do not have yet.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "zero/operator_tape.h"

namespace zerorun {

/// Throws UserError: the operator cannot be recorded, because of `reason`.
[[noreturn]] void refuse_deferred(
    const c10::OperatorHandle& op, const std::string& reason,
    const std::string& remedy =
        "Initialise this parameter without reading it, or build the module outside the DeferredInit scope");

/// Whether the tensors among the results can be deferred.
bool all_plain(const torch::jit::Stack& results);

/// Replaces the device argument, which says where to put the results, by Meta. Throws UserError if it is not
/// the CPU.
void redirect_to_meta(const c10::OperatorHandle& op, torch::jit::Stack& arguments);

/// Finds the sizes, strides and dtypes of the operator's results by a trial run on Meta tensors or, if the
/// operator has no Meta kernel, on zeros. Throws UserError for effects that the tape cannot record.
torch::jit::Stack foretell(const c10::OperatorHandle& op, const torch::jit::Stack& values,
                           const std::vector<TapeSlot>& deferred);
/// Draws the random numbers that plain construction would draw, and discards them.
torch::jit::Stack run_on_scratch(const c10::OperatorHandle& op, torch::jit::Stack arguments);

/// The next two functions replace the arguments on the stack by results. run_on_values() computes the values
/// that the operator reads, for this call only: torch.nn.init.trunc_normal_ of Python asks whether all
/// numbers lie within its bounds.
void run_on_values(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                   torch::jit::Stack* stack);
/// Tensors on Meta have no values for initialize() to compute (transformers loads weights into a model on
/// Meta), so they are LibTorch's own.
void run_on_meta(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, torch::jit::Stack* stack);

}  // namespace zerorun
