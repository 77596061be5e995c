#include "comm/nontemporal.h"

namespace zerorun {
namespace {

using Vector [[gnu::vector_size(16)]] = int64_t;
constexpr size_t kVector = sizeof(Vector);

}  // namespace

bool may_pass_caches([[maybe_unused]] const void* memory) {
#if defined(__x86_64__)
  return reinterpret_cast<uintptr_t>(memory) % kVector == 0;
#else
  return false;
#endif
}

void nontemporal_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

void copy_much(void* to, const void* from, size_t bytes) {
  size_t done = 0;
  if (bytes >= kPastCaches && may_pass_caches(to)) {
    constexpr size_t kChunk = 256;
    for (; done + kChunk <= bytes; done += kChunk) {
      const char* chunk = static_cast<const char*>(from) + done;
      ask_ahead(chunk, kChunk);
      for (size_t i = 0; i < kChunk; i += kVector) {
        Vector vector;
        std::memcpy(&vector, chunk + i, kVector);
        nontemporal_store(static_cast<char*>(to) + done + i, vector);
      }
    }
    nontemporal_fence();
  }
  if (done < bytes)
    std::memcpy(static_cast<char*>(to) + done, static_cast<const char*>(from) + done, bytes - done);
}

}  // namespace zerorun
