// The C library's heap. Any thread.
#pragma once

#include <cstdint>

namespace zerorun {

/// A free of at least this size makes return_freed_memory() worth calling.
inline constexpr int64_t kLargeBlock = 1 << 20;

/// Returns freed memory that the C library's heap still holds to the system. Between blocks in use that can
/// be much: a small block in the place of a freed large one is enough to make the next large one not fit
/// there. Takes milliseconds at most.
void return_freed_memory();

}  // namespace zerorun
