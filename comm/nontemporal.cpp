#include "comm/nontemporal.h"

namespace zerorun {
namespace {

constexpr size_t kVector = sizeof(__m128i);

}  // namespace

bool may_pass_caches(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) % kVector == 0;
}

void nontemporal_fence() {
  _mm_sfence();
}

void copy_much(void* to, const void* from, size_t bytes) {
  size_t done = 0;
  if (bytes >= kPastCaches && may_pass_caches(to)) {
    constexpr size_t kChunk = 256;
    for (; done + kChunk <= bytes; done += kChunk) {
      const char* chunk = static_cast<const char*>(from) + done;
      ask_ahead(chunk, kChunk);
      for (size_t i = 0; i < kChunk; i += kVector) {
        const __m128i vector = _mm_loadu_si128(reinterpret_cast<const __m128i*>(chunk + i));
        _mm_stream_si128(reinterpret_cast<__m128i*>(static_cast<char*>(to) + done + i), vector);
      }
    }
    nontemporal_fence();
  }
  if (done < bytes)
    std::memcpy(static_cast<char*>(to) + done, static_cast<const char*>(from) + done, bytes - done);
}

}  // namespace zerorun
