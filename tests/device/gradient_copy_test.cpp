// Tests gradient copies and sums for all pairs of dtypes. The expected values are computed in float64 and
// rounded by LibTorch.
#include "device/gradient_copy.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <random>

namespace zerorun {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr int64_t kSizes[] = {0, 1, 7, 8, 31, 1023, 1024, 1025, 3000};
const float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<Simd> paths() {
  return {available_simds().begin(), available_simds().end()};
}

// Random values of many magnitudes, including fp16 subnormals. The values and their squares are finite in
// every dtype.
at::Tensor random_values(int64_t numel, at::ScalarType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  at::Tensor values = at::empty({numel});
  for (int64_t i = 0; i < numel; ++i) {
    const double mantissa = static_cast<double>(random() >> 11) * 0x1p-53 + 0.5;
    values[i] = (random() % 2 ? -1 : 1) * std::ldexp(mantissa, static_cast<int>(random() % 30) - 24);
  }
  return values.to(dtype);
}

// Compares bits. Unlike at::equal(), this distinguishes 0 and -0.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.nbytes() == b.nbytes() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

// `values` times `factor`: the float64 product of each element, rounded once to float32.
at::Tensor product(const at::Tensor& values, float factor) {
  return values.to(at::kDouble).mul(static_cast<double>(factor)).to(at::kFloat);
}

}  // namespace

TEST_CASE("gradient copy: every pair of dtypes, any length, scaled in float32 and rounded once") {
  for (at::ScalarType from : kDtypes) {
    for (at::ScalarType to : kDtypes) {
      for (int64_t numel : kSizes) {
        for (float factor : {1.0F, 0.5F, 1.0F / 3, -2.7F}) {
          const at::Tensor source = random_values(numel, from, 1 + numel);
          const at::Tensor wanted = product(source, factor).to(to);
          for (Simd path : paths()) {
            INFO(from << " to " << to << ", " << numel << " values, factor " << factor);
            at::Tensor target = at::full({numel}, 7, to);
            REQUIRE(copy_scaled_on(path, target, source, factor));
            REQUIRE(same_bits(target, wanted));
            at::Tensor in_place = source.clone();
            REQUIRE(copy_scaled_on(path, in_place, in_place, factor));
            REQUIRE(same_bits(in_place, product(source, factor).to(from)));
          }
        }
      }
    }
  }
}

TEST_CASE("gradient copy: sums of every pair of dtypes are float32 sums rounded once") {
  for (at::ScalarType from : kDtypes) {
    for (at::ScalarType to : kDtypes) {
      for (int64_t numel : kSizes) {
        for (float factor : {1.0F, 1.0F / 3}) {
          const at::Tensor source = random_values(numel, from, 1 + numel);
          const at::Tensor start = random_values(numel, to, 2 + numel);
          const at::Tensor addend = product(source, factor).to(at::kDouble);
          const at::Tensor wanted = start.to(at::kDouble).add(addend).to(at::kFloat).to(to);
          for (Simd path : paths()) {
            INFO(from << " to " << to << ", " << numel << " values, factor " << factor);
            at::Tensor target = start.clone();
            REQUIRE(add_scaled_on(path, target, source, factor));
            REQUIRE(same_bits(target, wanted));
          }
        }
      }
    }
  }
}

TEST_CASE("gradient copy: a whole slice is written, and nothing outside of it") {
  for (at::ScalarType dtype : kDtypes) {
    const at::Tensor source = random_values(1100, dtype, 5);
    at::Tensor target = at::zeros({1200}, dtype);
    CHECK(copy_scaled(target.narrow(0, 33, 1050), source.narrow(0, 21, 1050), 1));
    CHECK(same_bits(target.narrow(0, 33, 1050), source.narrow(0, 21, 1050)));
    CHECK(at::count_nonzero(target).item<int64_t>() == 1050);
    CHECK(add_scaled(target.narrow(0, 33, 1050), source.narrow(0, 21, 1050), 1));
    CHECK(same_bits(target.narrow(0, 33, 1050), source.narrow(0, 21, 1050).mul(2)));
    CHECK(at::count_nonzero(target).item<int64_t>() == 1050);
  }
}

TEST_CASE("gradient copy: one infinity or NaN at any place is noticed, and is copied") {
  constexpr int64_t kNumel = 1100;
  for (at::ScalarType from : kDtypes) {
    for (at::ScalarType to : kDtypes) {
      for (float factor : {1.0F, 0.25F}) {
        at::Tensor source = random_values(kNumel, from, 3);
        at::Tensor target = at::zeros({kNumel}, to);
        for (int64_t place : {0, 1, 15, 16, 1022, 1023, 1024, 1088, 1098, 1099}) {
          const at::Tensor kept = source[place].clone();
          for (float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
            source[place] = bad;
            for (Simd path : paths()) {
              INFO(from << " to " << to << ", factor " << factor << ": " << bad << " at " << place);
              REQUIRE_FALSE(copy_scaled_on(path, target, source, factor));
              REQUIRE(at::isfinite(target).logical_not().nonzero().item<int64_t>() == place);
              REQUIRE(at::isnan(target[place]).item<bool>() == std::isnan(bad));
              target.zero_();
              REQUIRE_FALSE(add_scaled_on(path, target, source, factor));
              REQUIRE(at::isfinite(target).logical_not().nonzero().item<int64_t>() == place);
              REQUIRE(first_not_finite(source) == place);
              REQUIRE(first_not_finite(target) == place);
            }
          }
          source[place] = kept;
        }
        REQUIRE(copy_scaled(target, source, factor));
        REQUIRE(first_not_finite(source) == -1);
      }
    }
  }
}

TEST_CASE("gradient copy: values too large for the target dtype are noticed, the largest that fit are not") {
  const float largest = std::numeric_limits<float>::max();
  struct Case {
    at::ScalarType to;
    float value;
    float factor;
    bool finite;
  };
  // 65520 (fp16) and 0x1.ffp127 (bf16) lie half-way between the largest finite value of their dtype and the
  // next power of two. They round to infinity; smaller values round to a finite one.
  const Case cases[] = {
      {at::kHalf, 65519.996F, 1, true},
      {at::kHalf, 65520, 1, false},
      {at::kHalf, -65520, 1, false},
      {at::kHalf, 131040, 0.5, false},
      {at::kHalf, 131039, 0.5, true},
      {at::kHalf, largest, 1, false},
      {at::kBFloat16, std::nextafter(0x1.ffp127F, 0.0F), 1, true},
      {at::kBFloat16, 0x1.ffp127F, 1, false},
      {at::kBFloat16, -largest, 1, false},
      {at::kFloat, largest, 1, true},
      {at::kFloat, largest, 2, false},
      {at::kFloat, -largest, 1.0F + 1e-6F, false},
  };
  for (const Case& c : cases) {
    for (Simd path : paths()) {
      for (int64_t place : {0, 9, 1024}) {
        at::Tensor source = at::zeros({1030});
        source[place] = c.value;
        at::Tensor target = at::zeros({1030}, c.to);
        INFO(c.value << " * " << c.factor << " to " << c.to);
        CHECK(copy_scaled_on(path, target, source, c.factor) == c.finite);
        CHECK(at::isfinite(target).all().item<bool>() == c.finite);
      }
    }
  }
}

TEST_CASE("gradient copy: a sum that overflows is not reported if the added values are finite") {
  at::Tensor sum = at::full({20}, 60000, at::kHalf);
  CHECK(add_scaled(sum, at::full({20}, 60000, at::kHalf), 1));
  CHECK(first_not_finite(sum) == 0);
}

TEST_CASE("first not finite: -1 if all values are finite, also for an empty tensor") {
  for (at::ScalarType dtype : kDtypes) {
    CHECK(first_not_finite(at::empty({0}, dtype)) == -1);
    at::Tensor values = at::ones({5000}, dtype);
    CHECK(first_not_finite(values) == -1);
    values[4711] = kNan;
    values[4999] = kInfinity;
    CHECK(first_not_finite(values) == 4711);
    values[1024] = -kInfinity;
    CHECK(first_not_finite(values) == 1024);
  }
}

}  // namespace zerorun
