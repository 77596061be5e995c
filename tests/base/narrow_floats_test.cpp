// Compares conversions between fp32 and the 16-bit types with LibTorch's scalar conversions, for every
// instruction set of this machine (Simd).
#include "base/narrow_floats.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace zerorun {
namespace {

constexpr int kPatterns = 1 << 16;

std::vector<Simd> paths() {
  return {available_simds().begin(), available_simds().end()};
}

float widened_by_c10(uint16_t bits, Dtype dtype) {
  if (dtype == Dtype::bf16) return c10::BFloat16(bits, c10::BFloat16::from_bits());
  return c10::Half(bits, c10::Half::from_bits());
}

uint16_t narrowed_by_c10(float value, Dtype dtype) {
  return dtype == Dtype::bf16 ? c10::BFloat16(value).x : c10::Half(value).x;
}

std::vector<uint16_t> all_patterns() {
  std::vector<uint16_t> patterns(kPatterns);
  std::iota(patterns.begin(), patterns.end(), uint16_t{0});
  return patterns;
}

std::vector<float> widened(const std::vector<uint16_t>& values, Dtype dtype, Simd path) {
  std::vector<float> result(values.size());
  widen(values.data(), dtype, result.data(), static_cast<int64_t>(values.size()), path);
  return result;
}

std::vector<uint16_t> narrowed(const std::vector<float>& values, Dtype dtype, Simd path) {
  std::vector<uint16_t> result(values.size());
  narrow(values.data(), result.data(), dtype, static_cast<int64_t>(values.size()), path);
  return result;
}

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

bool is_nan(uint16_t bits, Dtype dtype) {
  return (bits & 0x7fff) > (dtype == Dtype::bf16 ? 0x7f80 : 0x7c00);
}

// Checks that every instruction set gives the same bits as c10. A NaN must become a NaN. Its bits may differ
// from c10's, but must be the same on every instruction set.
void check_narrowing(const std::vector<float>& values, Dtype dtype) {
  const std::vector<uint16_t> first = narrowed(values, dtype, Simd::portable);
  for (Simd path : paths()) {
    const std::vector<uint16_t> got = narrowed(values, dtype, path);
    for (size_t i = 0; i < values.size(); ++i) {
      const bool right = std::isnan(values[i]) ? is_nan(got[i], dtype) && got[i] == first[i]
                                               : got[i] == narrowed_by_c10(values[i], dtype);
      if (right) continue;
      FAIL_CHECK(name_of(dtype) << ", path " << static_cast<int>(path) << ": " << std::hex
                                << bits_of(values[i]) << " became " << got[i]);
      return;
    }
  }
  CHECK(!values.empty());
}

}  // namespace

TEST_CASE("narrow floats: all 65,536 values widen to the bits that c10 gives") {
  for (Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    for (Simd path : paths()) {
      const std::vector<float> wide = widened(all_patterns(), dtype, path);
      int wrong = 0;
      for (int i = 0; i < kPatterns; ++i) {
        wrong += bits_of(wide[i]) != bits_of(widened_by_c10(static_cast<uint16_t>(i), dtype));
      }
      INFO(name_of(dtype) << ", path " << static_cast<int>(path));
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("narrow floats: widening and narrowing gives every value back, and a NaN for a NaN") {
  for (Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    for (Simd path : paths()) {
      const std::vector<uint16_t> back = narrowed(widened(all_patterns(), dtype, path), dtype, path);
      int wrong = 0;
      for (int i = 0; i < kPatterns; ++i) {
        const auto bits = static_cast<uint16_t>(i);
        wrong += is_nan(bits, dtype) ? !is_nan(back[i], dtype) : back[i] != bits;
      }
      INFO(name_of(dtype) << ", path " << static_cast<int>(path));
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("narrow floats: ties round to even, values next to a tie to the nearer neighbour") {
  for (Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    const uint16_t infinity = dtype == Dtype::bf16 ? 0x7f80 : 0x7c00;
    for (uint16_t sign : {0x0000, 0x8000}) {
      std::vector<float> values;
      std::vector<uint16_t> wanted;
      for (uint16_t low = 0; low < infinity; ++low) {
        const float below = widened_by_c10(low, dtype);
        // For rounding, infinity counts as the value one step above the largest finite value.
        const float step = below - widened_by_c10(static_cast<uint16_t>(low == 0 ? 0 : low - 1), dtype);
        const auto high = static_cast<uint16_t>(low + 1);
        const double above =
            high == infinity ? static_cast<double>(below) + step : widened_by_c10(high, dtype);
        const auto tie = static_cast<float>((static_cast<double>(below) + above) / 2);
        // A tie lies halfway between two 16-bit values, and fp32 holds it exactly. So it can equal one of the
        // two values only if the CPU flushes subnormals to 0.
        if (tie == below || static_cast<double>(tie) == above) continue;
        for (auto [value, bits] :
             {std::pair(std::nextafter(tie, 0.0F), low), std::pair(tie, low % 2 ? high : low),
              std::pair(std::nextafter(tie, HUGE_VALF), high)}) {
          values.push_back(sign ? -value : value);
          wanted.push_back(bits | sign);
        }
      }
      REQUIRE(values.size() > 3 * 30'000);
      for (Simd path : paths()) {
        INFO(name_of(dtype) << ", path " << static_cast<int>(path) << ", sign " << sign);
        CHECK(narrowed(values, dtype, path) == wanted);
      }
    }
  }
}

TEST_CASE("narrow floats: zeros, subnormals, overflow and NaN by hand") {
  const float infinity = std::numeric_limits<float>::infinity();
  const float smallest = std::numeric_limits<float>::denorm_min();
  const std::vector<float> values = {0.0F,     -0.0F,  1.0F,     infinity, -infinity,  65504.0F, 65519.99F,
                                     65520.0F, -1e30F, 0x1p-24F, 0x1p-25F, 0x1.8p-24F, smallest, -smallest};
  const std::vector<uint16_t> fp16 = {0x0000, 0x8000, 0x3c00, 0x7c00, 0xfc00, 0x7bff, 0x7bff,
                                      0x7c00, 0xfc00, 0x0001, 0x0000, 0x0002, 0x0000, 0x8000};
  const float largest = std::numeric_limits<float>::max();
  for (Simd path : paths()) {
    CHECK(narrowed(values, Dtype::fp16, path) == fp16);
    CHECK(narrowed({-0.0F, largest, -largest, infinity, 0x1p-133F, 0x1p-134F, smallest}, Dtype::bf16, path) ==
          std::vector<uint16_t>{0x8000, 0x7f80, 0xff80, 0x7f80, 0x0001, 0x0000, 0x0000});
    for (uint32_t pattern : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7f801fffu}) {
      for (Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
        CHECK(is_nan(narrowed({std::bit_cast<float>(pattern)}, dtype, path)[0], dtype));
        CHECK(is_nan(narrowed(std::vector<float>(9, std::bit_cast<float>(pattern)), dtype, path)[3], dtype));
      }
    }
  }
}

TEST_CASE("narrow floats: millions of random bit patterns narrow as c10 narrows them") {
  std::mt19937_64 random(11);
  std::vector<float> values(2'000'001);
  for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  check_narrowing(values, Dtype::bf16);
  check_narrowing(values, Dtype::fp16);
  // Most random values are far outside fp16's range. Check again with exponents from -27 to 17.
  for (float& value : values) {
    const auto exponent = static_cast<uint32_t>(127 - 27 + random() % 45);
    value = std::bit_cast<float>((static_cast<uint32_t>(random()) & 0x807fffff) | (exponent << 23));
  }
  check_narrowing(values, Dtype::fp16);
}

TEST_CASE("narrow floats: every length works, and nothing is written past the end") {
  const std::vector<uint16_t> patterns = all_patterns();
  for (Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    const uint16_t* source = patterns.data() + 0x3c01;
    for (Simd path : paths()) {
      for (int64_t numel = 0; numel <= 40; ++numel) {
        std::vector<float> wide(numel + 1, -7.0F);
        widen(source, dtype, wide.data(), numel, path);
        REQUIRE(wide[numel] == -7.0F);
        std::vector<uint16_t> back(numel + 1, 0x1234);
        narrow(wide.data(), back.data(), dtype, numel, path);
        REQUIRE(back[numel] == 0x1234);
        REQUIRE(std::equal(source, source + numel, back.begin()));
      }
    }
  }
  const std::vector<float> plain = {1.0F, -0.0F, 1e-40F};
  std::vector<float> copy(3);
  widen(plain.data(), Dtype::fp32, copy.data(), 3);
  CHECK(copy == plain);
  std::vector<float> second(3);
  narrow(copy.data(), second.data(), Dtype::fp32, 3);
  CHECK(second == plain);
}

}  // namespace zerorun
