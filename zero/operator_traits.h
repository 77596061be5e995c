// Properties of an operator that a build scope needs before it records it: from the operator's schema, tags
// and kernels, or from its name if LibTorch does not state them there. Pure; any thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace zerorun {

/// Consists of other operators, which are intercepted one by one when it runs and are better to record.
bool decomposes(const c10::OperatorHandle& op);

/// Draws random numbers.
bool is_random(const c10::OperatorHandle& op);
/// Fills its first argument with random numbers, whose count does not depend on the old values.
bool is_random_fill(const c10::OperatorHandle& op);

/// Allocates a tensor without values.
bool only_allocates(const c10::OperatorHandle& op);
/// Copies a tensor, perhaps to another dtype: Module::to(dtype) does so without a NoGradGuard.
bool only_copies(const c10::OperatorHandle& op);
/// torch::tensor(3), torch::randperm(n): small tensors that the host reads as indices (nn::init::sparse_).
bool is_for_the_host(const c10::OperatorHandle& op);
bool is_resize(const c10::OperatorHandle& op);

bool returns_tensors_only(const c10::FunctionSchema& schema);
/// Every result is an argument that it writes to, and none is an out= argument, which it may resize.
bool only_writes_in_place(const c10::FunctionSchema& schema);
/// The argument that a result aliases, by the schema's alias names.
std::optional<size_t> aliased_argument(const c10::FunctionSchema& schema, size_t result);

}  // namespace zerorun
