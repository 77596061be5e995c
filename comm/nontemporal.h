// Stores that bypass the caches, for large results that are not read again soon. Ordinary stores first read
// the cache lines that they overwrite. These reads are a third of a copy's memory traffic. On processors
// other than x86-64 the same functions store as usual. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace zerorun {

/// Smallest result in bytes for which non-temporal stores are faster. A smaller result may still be in a
/// cache when it is read next.
inline constexpr size_t kPastCaches = size_t{8} << 20;

/// Prefetch distance in bytes. Software prefetch is needed because the hardware prefetcher stops at page
/// boundaries.
inline constexpr size_t kAskAhead = 2048;

inline void ask_ahead(const void* memory, size_t bytes) {
  for (size_t line = 0; line < bytes; line += 64) {
    __builtin_prefetch(static_cast<const char*>(memory) + kAskAhead + line);
  }
}

/// Whether this processor has non-temporal stores, and `memory` the 16-byte alignment that they need.
bool may_pass_caches(const void* memory);

/// Stores a vector of 16 bytes with a non-temporal store. `to` is aligned to 16 bytes.
template <typename Vector>
void nontemporal_store(void* to, Vector vector) {
  static_assert(sizeof(Vector) == 16);
#if defined(__x86_64__)
  _mm_stream_si128(static_cast<__m128i*>(to), reinterpret_cast<__m128i>(vector));
#else
  std::memcpy(to, &vector, sizeof vector);
#endif
}

/// to[i] = a[i] + b[i], with non-temporal stores. `length` is a multiple of 16, and `to` is aligned to 16
/// bytes. Other threads see the result only after nontemporal_fence().
template <typename T>
void nontemporal_add(T* to, const T* a, const T* b, int64_t length) {
  using Vector [[gnu::vector_size(16)]] = T;
  constexpr auto kLanes = static_cast<int64_t>(sizeof(Vector) / sizeof(T));
  for (int64_t i = 0; i < length; i += kLanes) {
    Vector left;
    Vector right;
    std::memcpy(&left, a + i, sizeof left);
    std::memcpy(&right, b + i, sizeof right);
    nontemporal_store<Vector>(to + i, left + right);
  }
}
void nontemporal_fence();

/// Like memcpy(), but bypasses the caches for large sizes.
void copy_much(void* to, const void* from, size_t bytes);

}  // namespace zerorun
