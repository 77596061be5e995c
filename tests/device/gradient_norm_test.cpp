// Tests the sum of squares against a sum in long double, a compensated sum, and the promised order of
// additions.
#include "device/gradient_norm.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/narrow_floats.h"

namespace zerorun {
namespace {

long double wide_sum(const std::vector<float>& values) {
  long double total = 0;
  for (float value : values) total += static_cast<long double>(value) * value;
  return total;
}

double kahan_sum(const std::vector<float>& values) {
  double total = 0;
  double lost = 0;
  for (float value : values) {
    const double addend = static_cast<double>(value) * value - lost;
    const double next = total + addend;
    lost = (next - total) - addend;
    total = next;
  }
  return total;
}

// The order of additions that device/gradient_norm.h promises: element i is added to partial sum i % 16, then
// the partial sums are added in order. The kernels must return the same bits.
double sixteen_sums(const std::vector<float>& values) {
  double sums[16] = {};
  for (size_t i = 0; i < values.size(); ++i) sums[i % 16] += static_cast<double>(values[i]) * values[i];
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

std::vector<float> random_values(std::mt19937_64& random, size_t count) {
  std::normal_distribution<float> mantissa;
  std::uniform_int_distribution<int> exponent(-20, 20);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(mantissa(random), exponent(random));
  return values;
}

double sum_of(const std::vector<float>& values, Simd path = widest_simd()) {
  return sum_of_squares(values.data(), Dtype::fp32, static_cast<int64_t>(values.size()), path);
}

}  // namespace

TEST_CASE("sum of squares: right to a few units in the last place for every size up to 1000") {
  std::mt19937_64 random(7);
  for (size_t count = 0; count <= 1000; ++count) {
    const std::vector<float> values = random_values(random, count);
    const double got = sum_of(values);
    INFO(count << " values");
    // All terms are positive. So the relative error is at most that of count / 16 + 16 roundings, each of
    // half a unit in the last place.
    const double bound = (static_cast<double>(count) / 16 + 16) * std::numeric_limits<double>::epsilon() / 2;
    REQUIRE(std::abs(got - static_cast<double>(wide_sum(values))) <= bound * got);
    REQUIRE(std::abs(got - kahan_sum(values)) <= bound * got);
    REQUIRE(got == sixteen_sums(values));
    for (Simd path : available_simds()) REQUIRE(got == sum_of(values, path));
  }
}

TEST_CASE("sum of squares: the same bits for memory that starts at any element") {
  std::mt19937_64 random(8);
  const std::vector<float> values = random_values(random, 300);
  for (size_t start = 0; start < 40; ++start) {
    const std::vector<float> tail(values.begin() + static_cast<std::ptrdiff_t>(start), values.end());
    const auto numel = static_cast<int64_t>(tail.size());
    REQUIRE(sum_of_squares(values.data() + start, Dtype::fp32, numel) == sixteen_sums(tail));
  }
}

TEST_CASE("sum of squares: the largest and smallest float32 neither overflow nor vanish") {
  const float largest = std::numeric_limits<float>::max();
  CHECK(sum_of(std::vector<float>(1000, largest)) ==
        Approx(1000.0 * static_cast<double>(largest) * largest).epsilon(1e-12));
  const float smallest = std::numeric_limits<float>::denorm_min();
  CHECK(sum_of({smallest}) == static_cast<double>(smallest) * smallest);
  CHECK(sum_of({}) == 0);
}

TEST_CASE("sum of squares: one infinity or NaN at any place makes the sum infinite or NaN") {
  std::mt19937_64 random(9);
  const float infinity = std::numeric_limits<float>::infinity();
  for (size_t count : {1, 15, 16, 17, 33, 100}) {
    std::vector<float> values = random_values(random, count);
    REQUIRE(std::isfinite(sum_of(values)));
    for (size_t place = 0; place < count; ++place) {
      const float kept = values[place];
      for (float bad : {infinity, -infinity}) {
        values[place] = bad;
        REQUIRE(std::isinf(sum_of(values)));
      }
      values[place] = std::numeric_limits<float>::quiet_NaN();
      REQUIRE(std::isnan(sum_of(values)));
      values[place] = kept;
    }
  }
}

TEST_CASE("sum of squares: 16-bit values give the bits of the same values in float32, on every path") {
  std::mt19937_64 random(10);
  for (Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    for (size_t count : {0, 1, 15, 16, 17, 1023, 1024, 1025, 2048, 5000}) {
      std::vector<uint16_t> values(count);
      // The mask clears exponent bits, so that no value is infinite or NaN in fp16 or bf16.
      for (uint16_t& value : values) value = static_cast<uint16_t>(random()) & 0xbbff;
      std::vector<float> wide(count);
      widen(values.data(), dtype, wide.data(), static_cast<int64_t>(count));
      const double wanted = sixteen_sums(wide);
      INFO(count << " values of " << name_of(dtype));
      REQUIRE(std::isfinite(wanted));
      for (Simd path : available_simds()) {
        CHECK(sum_of_squares(values.data(), dtype, static_cast<int64_t>(count), path) == wanted);
      }
      for (size_t place = 0; place < count; place += 1 + count / 7) {
        const uint16_t kept = values[place];
        values[place] = dtype == Dtype::bf16 ? 0xff80 : 0xfc00;
        CHECK(std::isinf(sum_of_squares(values.data(), dtype, static_cast<int64_t>(count))));
        values[place] += 1;
        CHECK(std::isnan(sum_of_squares(values.data(), dtype, static_cast<int64_t>(count))));
        values[place] = kept;
      }
    }
  }
}

}  // namespace zerorun
