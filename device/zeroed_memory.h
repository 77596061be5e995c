// Tensors of zeros that cost no memory until they are written to. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace zerorun {

/// A zero-filled 1-D CPU tensor, aligned to 64 bytes. Large ones are pages of their own that the system
/// provides at first touch and takes back when the tensor goes. Throws Error when it has none.
at::Tensor zeroed_memory(int64_t numel, at::ScalarType dtype);

}  // namespace zerorun
