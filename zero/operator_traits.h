// What a build scope must know of an operator before it takes it down: read from its schema, tags and kernels
// where LibTorch says it there, from its name where it does not. Pure; any thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace zerorun {

/// Made of other operators, which come one by one if it runs: the better units to record.
bool decomposes(const c10::OperatorHandle& op);

/// Draws random numbers.
bool is_random(const c10::OperatorHandle& op);
/// Fills its first argument with random numbers, and draws as many whatever was there.
bool is_random_fill(const c10::OperatorHandle& op);

/// Gives a tensor memory but no values.
bool only_allocates(const c10::OperatorHandle& op);
/// Copies a tensor, to another type perhaps: Module::to(dtype) does so without a NoGradGuard.
bool only_copies(const c10::OperatorHandle& op);
/// torch::tensor(3), torch::randperm(n): small, and the host reads them as indices (nn::init::sparse_ does).
bool is_for_the_host(const c10::OperatorHandle& op);
bool is_resize(const c10::OperatorHandle& op);

bool returns_tensors_only(const c10::FunctionSchema& schema);
/// Every result is an argument that it wrote to; none is an out= argument, which it may resize.
bool only_writes_in_place(const c10::FunctionSchema& schema);
/// The argument that a result stands for, by the schema's alias names.
std::optional<size_t> aliased_argument(const c10::FunctionSchema& schema, size_t result);

}  // namespace zerorun
