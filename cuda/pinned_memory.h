// Page-locked host memory, which the GPU copies to and from directly. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace zerorun {

/// Page-locks existing memory, until the result is destroyed: then it first waits for all work on GPU
/// `device`. Throws Error if CUDA refuses.
std::shared_ptr<void> page_lock(void* memory, size_t bytes, c10::DeviceIndex device);

/// Returns a zero-filled 1-D CPU tensor in page-locked memory. Freeing it waits for all work on GPU `device`.
/// Throws Error if the host has no such memory left.
at::Tensor pinned_memory(int64_t numel, at::ScalarType dtype, c10::DeviceIndex device);

}  // namespace zerorun
