#include "device/zeroed_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"

namespace zerorun {

at::Tensor zeroed_memory(int64_t numel, at::ScalarType dtype) {
  constexpr size_t kLarge = size_t{1} << 20;
  const at::TensorOptions options = at::TensorOptions().dtype(dtype);
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  if (bytes < kLarge) return at::zeros({numel}, options);
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw Error("the system has no " + std::to_string(bytes) +
                " bytes of memory left: " + std::strerror(errno));
  }
  return at::from_blob(
      pages, {numel}, [bytes](void* memory) { munmap(memory, bytes); }, options);
}

void populate(void* memory, size_t bytes, int threads) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes + kPage - 1) / kPage * kPage;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  // Parts begin at multiples of 2 MiB, so that two threads never want the same page.
  const uintptr_t first = begin / kHugePage;
  const uintptr_t count = (end + kHugePage - 1) / kHugePage - first;
  const auto boundary = [&](uintptr_t part) {
    return std::clamp((first + count * part / static_cast<uintptr_t>(threads)) * kHugePage, begin, end);
  };
  std::vector<std::thread> others;
  for (int part = 0; part < threads; ++part) {
    const auto provide = [from = boundary(static_cast<uintptr_t>(part)),
                          to = boundary(static_cast<uintptr_t>(part) + 1)] {
      ::madvise(reinterpret_cast<void*>(from), to - from, MADV_POPULATE_WRITE);
    };
    try {
      if (part + 1 < threads) {
        others.emplace_back(provide);
      } else {
        provide();
      }
    } catch (const std::system_error&) {
      provide();  // no thread can be created
    }
  }
  for (std::thread& other : others) other.join();
}

}  // namespace zerorun
