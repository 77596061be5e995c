// Pseudo-random permutations that are computed and not kept, so that data of any size can be shuffled. Pure;
// any thread.
#pragma once

#include <cstdint>

namespace zerorun {

/// Returns the image of `index` under a pseudo-random permutation of [0, size). `key` selects the
/// permutation.
int64_t permute(int64_t index, int64_t size, uint64_t key);

/// Returns which of `size` samples has the number `number` of a training, which counts over all epochs from
/// 0. Every epoch has all samples once, in an order that depends on `seed` and the epoch only.
int64_t shuffled_sample(int64_t number, int64_t size, uint64_t seed);

}  // namespace zerorun
