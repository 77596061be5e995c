// Properties of operators, for the interception and DeferredRecorder. They are derived from the operator's
// schema, tags and kernels if LibTorch states them there, else from its name. Pure functions; any thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace zerorun {

/// Whether the operator only calls other operators, before autograd sees it, on every device.
bool only_calls_others(const c10::OperatorHandle& op);
/// Whether DeferredRecorder records the operators that this one calls instead.
bool decomposes(const c10::OperatorHandle& op);

/// Whether the operator draws random numbers.
bool is_random(const c10::OperatorHandle& op);
/// Whether the operator fills its first argument with random numbers, and the number of draws does not depend
/// on the argument's old values.
bool is_random_fill(const c10::OperatorHandle& op);

/// Whether the operator gives a tensor memory but no values.
bool only_allocates(const c10::OperatorHandle& op);
/// Whether the operator copies a tensor, possibly to another dtype. Module::to(dtype) calls such operators
/// without a NoGradGuard.
bool only_copies(const c10::OperatorHandle& op);
/// Whether the host is expected to read the result. Examples are torch::tensor(3) and torch::randperm(n),
/// whose values nn::init::sparse_ uses as indices.
bool is_for_the_host(const c10::OperatorHandle& op);
bool is_resize(const c10::OperatorHandle& op);

bool returns_tensors_only(const c10::FunctionSchema& schema);
/// Whether every result is an argument that the operator writes to. False for operators with an out=
/// argument, because they may resize the argument.
bool only_writes_in_place(const c10::FunctionSchema& schema);
/// Returns the index of the argument that the operator writes to and returns as result number `result`,
/// according to the alias names in the schema.
std::optional<size_t> aliased_argument(const c10::FunctionSchema& schema, size_t result);

}  // namespace zerorun
