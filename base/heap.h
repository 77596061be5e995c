// The C library's heap. Any thread.
#pragma once

#include <cstdint>

namespace zerorun {

/// What is large enough to be worth return_freed_memory().
inline constexpr int64_t kLargeBlock = 1 << 20;

/// Gives the system what the heap keeps of memory that has been freed. Between blocks in use there may be
/// much of it: a small block in the place of a freed large one is enough that the next large one does not fit
/// there. Milliseconds at most.
void return_freed_memory();

}  // namespace zerorun
