// Tests that a reader of pinned bytes gets their original contents while the memory changes.
#include "checkpoint/memory_snapshot.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

namespace zerorun::testing {
using namespace checkpoint;
namespace {

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace

TEST_CASE("A reader of pinned bytes gets their original values, whatever its position when they change") {
  constexpr size_t kBytes = 10'000;
  for (size_t change_at = 0; change_at <= kBytes; change_at += 1000) {
    std::vector<std::byte> live = random_bytes(kBytes, change_at);
    const std::vector<std::byte> before = live;
    MemorySnapshot pinned(live);
    std::vector<std::byte> taken(kBytes);
    for (size_t at = 0; at < kBytes; at += 500) {
      if (at == change_at) {
        CHECK(pinned.keep() == static_cast<int64_t>(kBytes - at));
        CHECK(pinned.keep() == 0);
        live = random_bytes(kBytes, 1'000'000);
      }
      pinned.take(static_cast<int64_t>(at), std::span(taken).subspan(at, 500));
    }
    CHECK(taken == before);
  }
}

TEST_CASE("One thread reads pinned bytes while another thread changes them") {
  constexpr size_t kBytes = 1'000'000;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<std::byte> live = random_bytes(kBytes, seed);
    const std::vector<std::byte> before = live;
    MemorySnapshot pinned(live);
    std::vector<std::byte> taken(kBytes);
    std::thread writer([&] {
      for (size_t at = 0; at < kBytes; at += 10'000)
        pinned.take(static_cast<int64_t>(at), std::span(taken).subspan(at, 10'000));
    });
    // Not by yielding, which takes minutes if other processes want the processor.
    const auto start = std::chrono::steady_clock::now() + std::chrono::microseconds(20 * seed);
    while (std::chrono::steady_clock::now() < start) {
    }
    pinned.keep();
    std::ranges::fill(live, std::byte{0xff});
    writer.join();
    REQUIRE(taken == before);
  }
}

TEST_CASE("Pinned bytes are read from front to back") {
  std::vector<std::byte> live(100);
  MemorySnapshot pinned(live);
  std::vector<std::byte> into(10);
  pinned.take(50, into);
  CHECK_THROWS(pinned.take(40, into));
  CHECK_THROWS(pinned.take(95, into));
}

}  // namespace zerorun::testing
