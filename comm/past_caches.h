// Writing much that is not read again soon: past the caches, which saves reading the lines that are about to
// be overwritten (a third of a copy's traffic). Any thread.
#pragma once

#include <emmintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace zerorun {

/// From how many bytes on it pays: what is smaller may be read out of a cache by whoever comes next.
inline constexpr size_t kPastCaches = size_t{8} << 20;

/// How far ahead of its use memory is asked for, in bytes: the processor itself stops at every page's end.
inline constexpr size_t kAskAhead = 2048;

inline void ask_ahead(const void* memory, size_t bytes) {
  for (size_t line = 0; line < bytes; line += 64) {
    __builtin_prefetch(static_cast<const char*>(memory) + kAskAhead + line);
  }
}

/// Whether `memory` lies where values can be written past the caches.
bool may_pass_caches(const void* memory);
/// to = a + b, element by element; `length` is a multiple of 16. Others see it after finish_past_caches().
template <typename T>
void add_past_caches(T* to, const T* a, const T* b, int64_t length) {
  using Vector [[gnu::vector_size(16)]] = T;
  constexpr auto kLanes = static_cast<int64_t>(sizeof(Vector) / sizeof(T));
  for (int64_t i = 0; i < length; i += kLanes) {
    Vector left;
    Vector right;
    std::memcpy(&left, a + i, sizeof left);
    std::memcpy(&right, b + i, sizeof right);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), reinterpret_cast<__m128i>(left + right));
  }
}
void finish_past_caches();

/// memcpy(), past the caches if it is much.
void copy_much(void* to, const void* from, size_t bytes);

}  // namespace zerorun
