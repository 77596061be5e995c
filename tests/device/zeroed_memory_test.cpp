// Tests the memory of large CPU tensors.
#include "device/zeroed_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

namespace zerorun::testing {
namespace {

constexpr int64_t kPage = 4096;

// The number of the tensor's pages that the system has provided.
int64_t provided_pages(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
  REQUIRE(begin % kPage == 0);
  std::vector<unsigned char> provided((tensor.nbytes() + kPage - 1) / kPage);
  REQUIRE(::mincore(tensor.mutable_data_ptr(), tensor.nbytes(), provided.data()) == 0);
  return std::ranges::count_if(provided, [](unsigned char page) { return (page & 1) != 0; });
}

}  // namespace

TEST_CASE("zeroed memory: pages are provided at the first access, or all at once by populate()") {
  const int threads = GENERATE(1, 3, 100);
  const int64_t pages = GENERATE(256, 2049);
  const at::Tensor memory = zeroed_memory(pages * kPage, at::kByte);
  CHECK(provided_pages(memory) == 0);
  auto* bytes = memory.mutable_data_ptr<uint8_t>();
  bytes[5] = 7;
  CHECK(provided_pages(memory) < pages);
  populate(bytes, memory.nbytes(), threads);
  CHECK(provided_pages(memory) == pages);
  CHECK(bytes[5] == 7);
  bytes[5] = 0;
  CHECK(std::all_of(bytes, bytes + memory.nbytes(), [](uint8_t byte) { return byte == 0; }));
}

TEST_CASE("zeroed memory: populate() provides every page that the memory lies in, and no other") {
  const at::Tensor memory = zeroed_memory(2000 * kPage, at::kByte);
  populate(memory.mutable_data_ptr<uint8_t>() + 100 * kPage + 1, 3 * kPage, 2);
  CHECK(provided_pages(memory) == 4);
}

}  // namespace zerorun::testing
