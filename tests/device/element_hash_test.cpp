// Tests of the hash of tensors: parts add up, instruction sets agree, and small changes change it.
#include "device/element_hash.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace zerorun::testing {

TEST_CASE("The hash of parts adds up to that of the whole, on every instruction set") {
  std::mt19937_64 random(3);
  std::vector<uint64_t> values(1000);
  for (uint64_t& value : values) value = random();
  for (const int64_t size : {1, 2, 4, 8}) {
    const auto numel = static_cast<int64_t>(values.size());
    const uint64_t whole = hash_of_bits(values.data(), size, numel, 0, 5, Simd::portable);
    for (const Simd simd : available_simds()) {
      CAPTURE(size, name_of(simd));
      CHECK(hash_of_bits(values.data(), size, numel, 0, 5, simd) == whole);
      uint64_t sum = 0;
      int64_t begin = 0;
      for (const int64_t length : {0, 1, 7, 16, 400, 576}) {
        sum += hash_of_bits(reinterpret_cast<const char*>(values.data()) + begin * size, size, length, begin,
                            5, simd);
        begin += length;
      }
      REQUIRE(begin == numel);
      CHECK(sum == whole);
    }
    CHECK(hash_of_bits(values.data(), size, numel, 0, 6) != whole);
    CHECK(hash_of_bits(values.data(), size, numel, 1, 5) != whole);
  }
}

TEST_CASE("Hashes of products are those of their float32 bits, and all NaN are one") {
  std::vector<float> values = {0.1F, -3.0F, 1e-40F, std::numeric_limits<float>::infinity(), 7.0F, -0.0F};
  for (const Simd simd : available_simds()) {
    std::vector<float> products;
    for (const float value : values) products.push_back(value * 0.3F);
    CHECK(hash_of_products(values.data(), 0.3F, 6, 10, simd) ==
          hash_of_bits(products.data(), 4, 6, 10, 0, simd));
    const float nan = std::numeric_limits<float>::quiet_NaN(), other = -nan;
    CHECK(hash_of_products(&nan, 2, 1, 3, simd) == hash_of_products(&other, 1, 1, 3, simd));
  }
}

TEST_CASE("Hashes of similar tensors differ: each bit, place and exchange of elements counts") {
  std::set<uint64_t> seen;
  size_t count = 0;
  const auto add = [&](const std::vector<uint32_t>& values) {
    seen.insert(hash_of_bits(values.data(), 4, static_cast<int64_t>(values.size()), 0, 0));
    ++count;
  };
  const std::vector<uint32_t> zeros(64);
  add(zeros);
  for (size_t place = 0; place < zeros.size(); ++place) {
    for (int bit = 0; bit < 32; ++bit) {
      std::vector<uint32_t> values = zeros;
      values[place] = 1U << bit;
      add(values);
    }
  }
  std::vector<uint32_t> ascending(64);
  for (uint32_t i = 0; i < 64; ++i) ascending[i] = i;
  for (size_t a = 0; a < 64; ++a) {
    for (size_t b = a + 1; b < 64; ++b) {
      std::vector<uint32_t> values = ascending;
      std::swap(values[a], values[b]);
      add(values);
    }
  }
  CHECK(seen.size() == count);
}

}  // namespace zerorun::testing
