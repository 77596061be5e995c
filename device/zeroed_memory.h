// Zero-filled CPU tensors. Large tensors take no memory until they are written. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace zerorun {

/// A zero-filled 1-D CPU tensor, aligned to 64 bytes. Tensors of 1 MiB or more have pages of their own, which
/// the system provides at first touch and reclaims when the tensor is freed. Throws Error when out of memory.
at::Tensor zeroed_memory(int64_t numel, at::ScalarType dtype);

/// Makes the system provide the pages of `memory` now, in pages of 2 MiB where it can, by `threads` threads
/// at once. Their content stays as it is. Errors are ignored: the first access then provides the page.
void populate(void* memory, size_t bytes, int threads);

}  // namespace zerorun
