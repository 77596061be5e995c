// Updates whose values and moments are bfloat16: they compute as float32 updates do and round once, to
// nearest or at random.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/narrow_floats.h"
#include "device/update_kernels.h"

namespace zerorun {
namespace {

constexpr float kOfGradient = 0.25F;

constexpr AdamUpdate kAdam{.beta1 = 0.9F,
                           .new_in_first = 0.1F,
                           .beta2 = 0.999F,
                           .new_in_second = 0.001F,
                           .step_size = 0.01F,
                           .root_factor = 1.7F,
                           .eps = 1e-8F,
                           .gradient_decay = 0,
                           .value_decay = 0.003F};

struct State {
  std::vector<float> gradient;
  std::vector<uint16_t> values, first, second;

  explicit State(int64_t numel) {
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < numel; ++i) {
      gradient.push_back(normal(random));
      values.push_back(narrow_bf16(normal(random)));
      first.push_back(narrow_bf16(normal(random)));
      second.push_back(narrow_bf16(std::abs(normal(random))));
    }
  }

  static uint16_t narrow_bf16(float value) {
    uint16_t result = 0;
    narrow(&value, &result, Dtype::bf16, 1);
    return result;
  }
  static std::vector<float> widened(const std::vector<uint16_t>& values) {
    std::vector<float> result(values.size());
    widen(values.data(), Dtype::bf16, result.data(), static_cast<int64_t>(values.size()));
    return result;
  }

  UpdateSpan span(const RandomRounding& rounding = {}) {
    return {.numel = static_cast<int64_t>(values.size()),
            .gradient = gradient.data(),
            .gradient_dtype = Dtype::fp32,
            .values = values.data(),
            .first = first.data(),
            .second = second.data(),
            .values_dtype = Dtype::bf16,
            .moments_dtype = Dtype::bf16,
            .rounding = rounding};
  }

  bool operator==(const State&) const = default;
};

// The same update of float32 state: values, first and second moments.
std::vector<std::vector<float>> exact(const State& given) {
  std::vector<std::vector<float>> state{State::widened(given.values), State::widened(given.first),
                                        State::widened(given.second)};
  const UpdateSpan span{.numel = static_cast<int64_t>(given.values.size()),
                        .gradient = given.gradient.data(),
                        .gradient_dtype = Dtype::fp32,
                        .values = state[0].data(),
                        .first = state[1].data(),
                        .second = state[2].data()};
  update(kAdam, kOfGradient, span);
  return state;
}

}  // namespace

TEST_CASE("bfloat16 state: an update computes in float32 and rounds once to nearest, on every path") {
  for (const int64_t numel : {1, 31, 64, 65, 1000, 4099}) {
    const State before(numel);
    const auto wanted = exact(before);
    for (const Simd simd : available_simds()) {
      CAPTURE(numel, name_of(simd));
      State after = before;
      update(kAdam, kOfGradient, after.span(), simd);
      const std::vector<uint16_t>* states[] = {&after.values, &after.first, &after.second};
      for (size_t which = 0; which < 3; ++which) {
        std::vector<uint16_t> rounded;
        for (const float value : wanted[which]) rounded.push_back(State::narrow_bf16(value));
        CHECK(*states[which] == rounded);
      }
    }
  }
}

TEST_CASE("bfloat16 state: each of values and moments may be float32") {
  const State before(777);
  State narrow_moments = before, narrow_values = before;
  std::vector<float> values = State::widened(before.values);
  std::vector<float> first = State::widened(before.first), second = State::widened(before.second);
  UpdateSpan span = narrow_moments.span();
  span.values = values.data();
  span.values_dtype = Dtype::fp32;
  update(kAdam, kOfGradient, span);
  span = narrow_values.span();
  span.first = first.data();
  span.second = second.data();
  span.moments_dtype = Dtype::fp32;
  update(kAdam, kOfGradient, span);
  const auto wanted = exact(before);
  CHECK(values == wanted[0]);
  CHECK(first == wanted[1]);
  CHECK(second == wanted[2]);
  State both = before;
  update(kAdam, kOfGradient, both.span());
  CHECK(narrow_moments.first == both.first);
  CHECK(narrow_moments.second == both.second);
  CHECK(narrow_values.values == both.values);
}

TEST_CASE("Random rounding: the same bits on every path, in every division, of key and element alone") {
  const State before(4099);
  const RandomRounding rounding{.is_on = true, .key = 0x1234567, .first = 1000};
  State whole = before;
  update(kAdam, kOfGradient, whole.span(rounding), Simd::portable);
  for (const Simd simd : available_simds()) {
    CAPTURE(name_of(simd));
    for (const int64_t piece : {4099, 1000, 17}) {
      State cut = before;
      for (int64_t begin = 0; begin < 4099; begin += piece)
        update(kAdam, kOfGradient, cut.span(rounding).slice(begin, std::min<int64_t>(piece, 4099 - begin)),
               simd);
      CHECK(cut == whole);
    }
  }
  State other = before;
  update(kAdam, kOfGradient, other.span({.is_on = true, .key = 0x1234568, .first = 1000}));
  CHECK(other.values != whole.values);
  State shifted = before;
  update(kAdam, kOfGradient, shifted.span({.is_on = true, .key = 0x1234567, .first = 1001}));
  CHECK(shifted.values != whole.values);
}

TEST_CASE("Random rounding: one of the two neighbours, and the exact result on average") {
  const State before(200);
  const auto wanted = exact(before);
  constexpr int kDraws = 4000;
  std::vector<std::vector<double>> sums(3, std::vector<double>(200));
  for (int draw = 0; draw < kDraws; ++draw) {
    State after = before;
    update(kAdam, kOfGradient,
           after.span({.is_on = true, .key = mixed(static_cast<uint64_t>(draw)), .first = 0}));
    const std::vector<uint16_t>* states[] = {&after.values, &after.first, &after.second};
    for (size_t which = 0; which < 3; ++which) {
      for (size_t i = 0; i < 200; ++i) {
        const auto towards_zero = static_cast<uint16_t>(std::bit_cast<uint32_t>(wanted[which][i]) >> 16);
        const uint16_t found = (*states[which])[i];
        REQUIRE((found == towards_zero || found == towards_zero + 1));
        sums[which][i] += State::widened({found})[0];
      }
    }
  }
  for (size_t which = 0; which < 3; ++which) {
    for (size_t i = 0; i < 200; ++i) {
      const float value = wanted[which][i];
      // The standard deviation of one draw is at most half the distance of the two neighbours.
      const double distance = std::ldexp(1.0, std::ilogb(value) - 7);
      CHECK(std::abs(sums[which][i] / kDraws - value) < 5 * distance / 2 / std::sqrt(kDraws));
    }
  }
}

TEST_CASE("Random rounding: bfloat16 numbers, infinities and NaN stay what they are") {
  for (const uint64_t random : {uint64_t{0}, uint64_t{0x7fff}, uint64_t{0xffff}, ~uint64_t{0}}) {
    for (const float value : {0.0F, -0.0F, 1.0F, -3.25F, 0x1p-133F, std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
      CHECK(bf16_at_random(value, random) == std::bit_cast<uint32_t>(value) >> 16);
    }
    CHECK(std::isnan(State::widened({bf16_at_random(std::nanf(""), random)})[0]));
  }
}

}  // namespace zerorun
