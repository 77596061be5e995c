// Every path of the update kernels gives the same bits, however the memory is cut. What the bits should be is
// tested through the optimizer.
#include "device/update_kernels.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "base/narrow_floats.h"

namespace zerorun {
namespace {

constexpr float kFactor = 0.37F;

// What one shard owns, with a guard element behind every array.
struct Memory {
  int64_t numel;
  std::vector<float> gradient, values, first, second, third;
  std::vector<uint16_t> narrow_gradient, rounded;

  Memory(int64_t count, Dtype dtype, bool squares_first) : numel(count), rounded(count + 1, 0x1234) {
    std::mt19937_64 random(static_cast<uint64_t>(count) + 1);
    std::normal_distribution<float> normal;
    for (std::vector<float>* array : {&gradient, &values, &first, &second, &third}) {
      for (int64_t i = 0; i <= count; ++i) array->push_back(normal(random));
    }
    // Averages of squares, where a rule has them in these places.
    for (std::vector<float>* array : {squares_first ? &first : &second, &third}) {
      for (float& value : *array) value *= value;
    }
    if (dtype == Dtype::fp32) return;
    narrow_gradient.resize(count + 1);
    narrow(gradient.data(), narrow_gradient.data(), dtype, count + 1);
    widen(narrow_gradient.data(), dtype, gradient.data(), count + 1);
  }

  /// With the gradient in `dtype` and the rounded values too (fp32: not wanted).
  UpdateSpan span(Dtype dtype, int moments) {
    UpdateSpan span{
        .numel = numel, .gradient = gradient.data(), .gradient_dtype = dtype, .values = values.data()};
    if (dtype != Dtype::fp32) {
      span.gradient = narrow_gradient.data();
      span.rounded = rounded.data();
      span.rounded_dtype = dtype;
    }
    if (moments > 0) span.first = first.data();
    if (moments > 1) span.second = second.data();
    if (moments > 2) span.third = third.data();
    return span;
  }

  std::vector<uint32_t> bits() const {
    std::vector<uint32_t> bits;
    for (const auto* array : {&gradient, &values, &first, &second, &third}) {
      for (float value : *array) bits.push_back(std::bit_cast<uint32_t>(value));
    }
    bits.insert(bits.end(), narrow_gradient.begin(), narrow_gradient.end());
    bits.insert(bits.end(), rounded.begin(), rounded.end());
    return bits;
  }
};

template <typename Rule>
void check_paths(const Rule& rule, bool squares_first = false) {
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    for (int64_t numel : {0, 1, 7, 8, 9, 1023, 1024, 1025, 2500}) {
      INFO(numel << " elements, gradient in " << name_of(dtype));
      Memory portable(numel, dtype, squares_first);
      const Memory before = portable;
      update(rule, kFactor, portable.span(dtype, Rule::kMoments), Simd::portable);
      CHECK((portable.values != before.values) == (numel > 0));
      CHECK((portable.rounded != before.rounded) == (numel > 0 && dtype != Dtype::fp32));
      for (const auto& [array, old] :
           {std::pair(&portable.values, &before.values), std::pair(&portable.first, &before.first),
            std::pair(&portable.second, &before.second), std::pair(&portable.third, &before.third)}) {
        CHECK(array->back() == old->back());
      }
      CHECK(portable.rounded.back() == 0x1234);
      CHECK(portable.gradient == before.gradient);
      CHECK(portable.narrow_gradient == before.narrow_gradient);

      Memory widest(numel, dtype, squares_first);
      update(rule, kFactor, widest.span(dtype, Rule::kMoments), widest_simd());
      CHECK(widest.bits() == portable.bits());

      Memory cut(numel, dtype, squares_first);
      const int64_t piece = 1 + numel / 3;
      for (int64_t begin = 0; begin < numel; begin += piece) {
        update(rule, kFactor, cut.span(dtype, Rule::kMoments).slice(begin, std::min(piece, numel - begin)));
      }
      CHECK(cut.bits() == portable.bits());
    }
  }
}

AdamUpdate adam() {
  return {.beta1 = 0.9F,
          .new_in_first = 0.1F,
          .beta2 = 0.999F,
          .new_in_second = 0.001F,
          .step_size = 0.01F,
          .root_factor = 1.7F,
          .eps = 1e-8F,
          .gradient_decay = 0,
          .value_decay = 0};
}

template <typename Rule>
Rule rmsprop() {
  return {.lr = 0.01F,
          .alpha = 0.99F,
          .new_in_average = 0.01F,
          .eps = 1e-8F,
          .gradient_decay = 0.1F,
          .momentum = 0.9F};
}

}  // namespace

TEST_CASE("update kernels: Adam and AdamW have the same bits on every path") {
  AdamUpdate rule = adam();
  check_paths(rule);
  rule.gradient_decay = 0.1F;
  check_paths(rule);
  rule.gradient_decay = 0;
  rule.value_decay = 0.003F;
  check_paths(rule);
}

TEST_CASE("update kernels: SGD has the same bits on every path") {
  check_paths(SgdUpdate{.lr = 0.05F, .gradient_decay = 0.1F});
  MomentumUpdate rule{.lr = 0.05F,
                      .gradient_decay = 0.1F,
                      .momentum = 0.9F,
                      .new_in_first = 0.7F,
                      .of_gradient = 0,
                      .of_first = 1};
  check_paths(rule);
  rule.of_gradient = 1;
  rule.of_first = 0.9F;
  check_paths(rule);
}

TEST_CASE("update kernels: Lion has the same bits on every path") {
  check_paths(LionUpdate{.lr = 0.05F,
                         .beta1 = 0.9F,
                         .new_in_step = 0.1F,
                         .beta2 = 0.99F,
                         .new_in_first = 0.01F,
                         .kept = 0.995F});
}

TEST_CASE("update kernels: AMSGrad has the same bits on every path") {
  AmsgradUpdate rule{adam()};
  check_paths(rule);
  rule.adam.value_decay = 0.003F;
  check_paths(rule);
}

TEST_CASE("update kernels: Adagrad has the same bits on every path") {
  check_paths(AdagradUpdate{.step_size = 0.05F, .eps = 1e-10F, .gradient_decay = 0.1F}, true);
}

TEST_CASE("update kernels: RMSprop has the same bits on every path") {
  check_paths(rmsprop<RmspropUpdate>(), true);
  check_paths(rmsprop<CenteredRmspropUpdate>(), true);
  check_paths(rmsprop<RmspropMomentumUpdate>(), true);
  check_paths(rmsprop<CenteredRmspropMomentumUpdate>(), true);
}

// The variance of equal gradients is 0, and rounding may take it below: in float32 for about half of the
// gradients that are tried here.
TEST_CASE("update kernels: centered RMSprop makes no NaN of gradients that are always the same") {
  auto rule = rmsprop<CenteredRmspropUpdate>();
  rule.gradient_decay = 0;
  int below = 0;
  for (int i = 0; i < 100; ++i) {
    const float gradient = 0.37F + 0.011F * static_cast<float>(i);
    float value = 0;
    float first = 0;
    float second = 0;
    const UpdateSpan span{.numel = 1,
                          .gradient = &gradient,
                          .gradient_dtype = Dtype::fp32,
                          .values = &value,
                          .first = &first,
                          .second = &second};
    for (int step = 0; step < 4000; ++step) update(rule, 1, span);
    below += first - second * second < 0 ? 1 : 0;
    CHECK(std::isfinite(value));
  }
  CHECK(below > 0);
}

// Chen et al. 2023, algorithm 2, in float64.
TEST_CASE("update kernels: Lion follows the formula") {
  const LionUpdate rule{.lr = 0.05F,
                        .beta1 = 0.9F,
                        .new_in_step = 0.1F,
                        .beta2 = 0.99F,
                        .new_in_first = 0.01F,
                        .kept = static_cast<float>(1 - 0.05 * 0.1)};
  for (const float gradient : {2.0F, -3.0F, 0.0F}) {
    for (const float moment : {-0.5F, 0.0F, 0.25F}) {
      float value = 0.75F;
      float first = moment;
      const UpdateSpan span{.numel = 1,
                            .gradient = &gradient,
                            .gradient_dtype = Dtype::fp32,
                            .values = &value,
                            .first = &first};
      update(rule, 0.5F, span);
      const double g = 0.5 * gradient;
      const double direction = 0.9 * moment + 0.1 * g;
      const double sign = direction > 0 ? 1 : direction < 0 ? -1 : 0;
      CHECK(value == Approx(0.75 * (1 - 0.05 * 0.1) - 0.05 * sign));
      CHECK(first == Approx(0.99 * moment + 0.01 * g));
    }
  }
}

}  // namespace zerorun
