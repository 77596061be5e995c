// Moments in codes (device/moment_codes.h) as numbers: what saves, loads or shows them reads and writes
// float32. Numbers that are read and written back leave codes and scales as they are. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include "zero/slice_store.h"

namespace zerorun {

/// Whether the state is in codes; the functions below that take one are for such states.
inline bool has_codes(const StateTensor& state) {
  return state.scales.defined();
}

/// The numbers of all of the state's memory, or of this rank's slice: 1-D float32, in host memory. Waits for
/// the device.
at::Tensor numbers_of(const SliceStore& store, int bucket, const StateTensor& state, Extent extent);
/// Encodes such numbers as the state, or as this rank's slice of it.
void put_numbers(const SliceStore& store, int bucket, const StateTensor& state, Extent extent,
                 const at::Tensor& numbers);

}  // namespace zerorun
