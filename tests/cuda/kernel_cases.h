// Checks that every kernel of a device computes the same bits as the CPU's, for all dtypes, sizes and
// alignments. (Where arithmetic makes a NaN, any NaN will do.) Catch2 checks: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "device/device.h"

namespace zerorun::testing {

using Sizes = std::vector<int64_t>;

void check_copies(Device& tested, const Sizes& sizes);
void check_findings(Device& tested);
/// Summed in float64 in another order than the CPU's: equal where all sums are exact, else to 12 digits.
void check_squares(Device& tested, const Sizes& sizes);
void check_updates(Device& tested, const Sizes& sizes);
void check_following(Device& tested, const Sizes& sizes);
void check_step_facts(Device& tested);

// Building blocks of these checks.

/// Values of many magnitudes, zeros and subnormals; finite in every dtype. On the CPU.
at::Tensor random_values(int64_t numel, at::ScalarType dtype, uint64_t seed);

/// Compares bits, not numbers: 0 and -0 differ. All NaNs are equal.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// A copy on `device` that begins `offset` elements after aligned memory.
at::Tensor put(Device& device, const at::Tensor& values, int64_t offset = 0);

/// A copy on the CPU, made after all work of the current stream.
at::Tensor get(Device& device, const at::Tensor& values);

/// A new Tally on `device`, and the contents of one.
at::Tensor new_tally(Device& device);
Tally read_tally(Device& device, const at::Tensor& tally);

}  // namespace zerorun::testing
