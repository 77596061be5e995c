// The GPU memory that LibTorch's caching allocator keeps although no tensor uses it. Thread-safe.
#pragma once

namespace zerorun {

/// Returns LibTorch's unused memory on the current GPU to the driver, for allocations that do not go through
/// LibTorch. Waits for the GPU: freeing waits for it anyway, but under a lock of the driver, behind which a
/// watchdog would wait too.
void free_cached_memory();

}  // namespace zerorun
