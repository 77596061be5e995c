// The traits of an operator that a build scope needs before it records the operator: derived from its schema,
// tags and kernels if LibTorch states them there, else from its name. Pure; any thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace zerorun {

/// Calls other operators, which are intercepted one by one when it runs and are the better units to record.
bool decomposes(const c10::OperatorHandle& op);

/// Draws random numbers.
bool is_random(const c10::OperatorHandle& op);
/// Fills its first argument with random numbers; how many it draws does not depend on the old values.
bool is_random_fill(const c10::OperatorHandle& op);

/// Gives a tensor memory but no values.
bool only_allocates(const c10::OperatorHandle& op);
/// Copies a tensor, possibly to another dtype; Module::to(dtype) does so without a NoGradGuard.
bool only_copies(const c10::OperatorHandle& op);
/// torch::tensor(3), torch::randperm(n): small, and the host reads them as indices (nn::init::sparse_ does).
bool is_for_the_host(const c10::OperatorHandle& op);
bool is_resize(const c10::OperatorHandle& op);

bool returns_tensors_only(const c10::FunctionSchema& schema);
/// Every result is an argument that it wrote to; none is an out= argument, which the operator may resize.
bool only_writes_in_place(const c10::FunctionSchema& schema);
/// The argument that the operator writes to and returns as `result`, by the schema's alias names.
std::optional<size_t> aliased_argument(const c10::FunctionSchema& schema, size_t result);

}  // namespace zerorun
