// The C library's heap. Any thread.
#pragma once

#include <cstdint>

namespace zerorun {

/// Freeing a block of at least this many bytes makes return_freed_memory() worth calling.
inline constexpr int64_t kLargeBlock = 1 << 20;

/// Returns to the system the freed memory that the C library's heap still holds. This can be a lot of memory:
/// once a small block occupies part of the space of a freed large block, the next large block does not fit
/// there, and the heap grows. Takes milliseconds at most.
void return_freed_memory();

}  // namespace zerorun
