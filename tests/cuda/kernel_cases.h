// Checks that every kernel of a device computes the same bits as the CPU's kernel, for all dtypes, sizes and
// alignments. (Where arithmetic gives a NaN, any NaN is accepted.) Uses Catch2's checks, so only one thread
// may call these functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "device/step_facts.h"
#include "device/update_rules.h"

namespace zerorun::testing {

using Sizes = std::vector<int64_t>;

void check_copies(Device& tested, const Sizes& sizes);
void check_findings(Device& tested);
/// The device adds in float64, in another order than the CPU. For values whose sums are exact, both results
/// must be equal; for other values they must agree to 12 digits.
void check_squares(Device& tested, const Sizes& sizes);
void check_updates(Device& tested, const Sizes& sizes);
/// Updates of bfloat16 values and moments.
void check_narrow_updates(Device& tested, const Sizes& sizes);
/// Updates of moments in 8 bits.
void check_coded_updates(Device& tested, const Sizes& sizes);
void check_following(Device& tested, const Sizes& sizes);
void check_step_facts(Device& tested);
/// Checks decide() for jobs of few and of many ranks.
void check_decisions(Device& tested);

// Building blocks of these checks.

/// Returns a CPU tensor with values of many magnitudes, zeros and subnormals. All are finite in every dtype.
at::Tensor random_values(int64_t numel, at::ScalarType dtype, uint64_t seed);

/// Compares bits, not numbers: 0 and -0 differ. All NaNs are equal.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// Returns a copy of `values` on `device` that begins `offset` elements after an aligned address.
at::Tensor put(Device& device, const at::Tensor& values, int64_t offset = 0);

/// Returns a copy of `values` on the CPU, made after all work of the current stream.
at::Tensor get(Device& device, const at::Tensor& values);

/// Returns a new Tally on `device`.
at::Tensor new_tally(Device& device);
/// Returns the contents of a Tally on `device`.
Tally read_tally(Device& device, const at::Tensor& tally);

}  // namespace zerorun::testing
