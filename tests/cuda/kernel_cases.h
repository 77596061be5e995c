// What every kernel of a device must compute, against the CPU's: the same bits, whatever the dtypes, the
// number of values and where in memory they begin. (Of a NaN that arithmetic makes only that it is one.)
// Catch2 checks: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "device/device.h"

namespace zerorun::testing {

using Sizes = std::vector<int64_t>;

void check_copies(Device& tested, const Sizes& sizes);
void check_findings(Device& tested);
/// In float64 and another order than the CPU's: equal where all sums are exact, else to 12 digits.
void check_squares(Device& tested, const Sizes& sizes);
void check_updates(Device& tested, const Sizes& sizes);
void check_following(Device& tested, const Sizes& sizes);
void check_step_facts(Device& tested);

// What these are made of.

/// Values of many magnitudes, zeros and subnormals; finite in every dtype. On the CPU.
at::Tensor random_values(int64_t numel, at::ScalarType dtype, uint64_t seed);

/// Not of numbers: one zero is not the other. Every NaN is every other.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// A copy on `device`, that begins `offset` elements behind aligned memory.
at::Tensor put(Device& device, const at::Tensor& values, int64_t offset = 0);

/// A copy on the CPU, when all is done that the current stream was given.
at::Tensor get(Device& device, const at::Tensor& values);

/// A new Tally on `device`, and what is in one.
at::Tensor new_tally(Device& device);
Tally read_tally(Device& device, const at::Tensor& tally);

}  // namespace zerorun::testing
