// Tests that the update kernels give the same bits on every instruction set, even if a shard is updated in
// pieces. tests/optim/ checks the values.
#include "device/update_kernels.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <new>
#include <random>
#include <vector>

#include "base/narrow_floats.h"

namespace zerorun {
namespace {

constexpr float kFactor = 0.37F;

// Aligns arrays to a cache line, as Device::allocate() does. The kernels write rounded values with
// non-temporal stores only to such arrays.
template <typename T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* memory, size_t) { ::operator delete(memory, kLine); }
  bool operator==(const LineAllocator&) const { return true; }
};

template <typename T>
using Array = std::vector<T, LineAllocator<T>>;

// The arrays of one shard, with a guard element after each.
struct Memory {
  int64_t numel;
  Array<float> gradient, values, first, second, third;
  Array<uint16_t> narrow_gradient, rounded;

  Memory(int64_t count, Dtype dtype, bool squares_first) : numel(count), rounded(count + 1, 0x1234) {
    std::mt19937_64 random(static_cast<uint64_t>(count) + 1);
    std::normal_distribution<float> normal;
    for (Array<float>* array : {&gradient, &values, &first, &second, &third}) {
      for (int64_t i = 0; i <= count; ++i) array->push_back(normal(random));
    }
    // The rules take square roots of these moments, so they must not be negative.
    for (Array<float>* array : {squares_first ? &first : &second, &third}) {
      for (float& value : *array) value *= value;
    }
    if (dtype == Dtype::fp32) return;
    narrow_gradient.resize(count + 1);
    narrow(gradient.data(), narrow_gradient.data(), dtype, count + 1);
    widen(narrow_gradient.data(), dtype, gradient.data(), count + 1);
  }

  /// A span over these arrays. Its gradient has `dtype`. The kernel writes values rounded to `rounded_dtype`;
  /// with fp32 it writes no rounded values.
  UpdateSpan span(Dtype dtype, Dtype rounded_dtype, int moments) {
    UpdateSpan span{
        .numel = numel, .gradient = gradient.data(), .gradient_dtype = dtype, .values = values.data()};
    if (dtype != Dtype::fp32) span.gradient = narrow_gradient.data();
    if (rounded_dtype != Dtype::fp32) {
      span.rounded = rounded.data();
      span.rounded_dtype = rounded_dtype;
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

// Checks that an update wrote neither to the guard elements nor to the gradients.
void check_untouched(const Memory& after, const Memory& before) {
  for (auto array : {&Memory::values, &Memory::first, &Memory::second, &Memory::third}) {
    CHECK((after.*array).back() == (before.*array).back());
  }
  CHECK(after.rounded.back() == 0x1234);
  CHECK(after.gradient == before.gradient);
  CHECK(after.narrow_gradient == before.narrow_gradient);
}

template <typename Rule>
void check_paths_of(const Rule& rule, bool squares_first, int64_t numel, Dtype dtype, Dtype rounded_dtype) {
  INFO(numel << " elements, gradient in " << name_of(dtype) << ", rounded to " << name_of(rounded_dtype));
  Memory portable(numel, dtype, squares_first);
  const Memory before = portable;
  update(rule, kFactor, portable.span(dtype, rounded_dtype, Rule::kMoments), Simd::portable);
  CHECK((portable.bits() != before.bits()) == (numel > 0));
  CHECK((portable.rounded != before.rounded) == (numel > 0 && rounded_dtype != Dtype::fp32));
  check_untouched(portable, before);

  for (Simd simd : available_simds()) {
    INFO(name_of(simd));
    Memory whole = before;
    update(rule, kFactor, whole.span(dtype, rounded_dtype, Rule::kMoments), simd);
    CHECK(whole.bits() == portable.bits());

    // Updates the shard in pieces, most of which do not begin at a multiple of the vector width.
    Memory cut = before;
    const int64_t piece = 1 + numel / 3;
    for (int64_t begin = 0; begin < numel; begin += piece) {
      const UpdateSpan span = cut.span(dtype, rounded_dtype, Rule::kMoments);
      update(rule, kFactor, span.slice(begin, std::min(piece, numel - begin)), simd);
    }
    CHECK(cut.bits() == portable.bits());
  }
}

template <typename Rule>
void check_paths(const Rule& rule, bool squares_first = false) {
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    for (Dtype rounded_dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
      for (int64_t numel : {0, 1, 7, 8, 9, 63, 64, 65, 319, 1023, 1024, 1025, 2500}) {
        check_paths_of(rule, squares_first, numel, dtype, rounded_dtype);
      }
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

TEST_CASE("update kernels: spans that are larger than caches have the same bits on every path") {
  constexpr int64_t kLarge = (int64_t{1} << 22) + 77;
  for (Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    Memory small(kLarge, dtype, false);
    const Memory before = small;
    for (int64_t begin = 0; begin < kLarge; begin += 100'000) {
      const UpdateSpan part = small.span(dtype, dtype, AdamUpdate::kMoments)
                                  .slice(begin, std::min<int64_t>(100'000, kLarge - begin));
      update(adam(), kFactor, part, Simd::portable);
    }
    const std::vector<uint32_t> wanted = small.bits();
    for (Simd simd : available_simds()) {
      Memory large = before;
      update(adam(), kFactor, large.span(dtype, dtype, AdamUpdate::kMoments), simd);
      INFO(name_of(dtype) << ", " << name_of(simd));
      CHECK((large.bits() == wanted));
    }
  }
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

// The variance of equal gradients is 0. In float32, rounding makes the computed variance negative for a third
// of the gradients below.
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

// The expected values follow Chen et al. 2023, algorithm 2, in float64.
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

TEST_CASE("update kernels: directions of Lamb have the same bits on every path") {
  LambDirection rule{.beta1 = 0.9F,
                     .new_in_first = 0.1F,
                     .beta2 = 0.999F,
                     .new_in_second = 0.001F,
                     .eps_in_root = 0,
                     .eps = 1e-6F,
                     .decay = 0.1F};
  check_paths(rule);
}

}  // namespace zerorun
