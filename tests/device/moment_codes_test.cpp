// Moments in 8 bits: the code books and the codes of bitsandbytes (benchmarks/peers/record_codes.py), the
// nearest value by search, and the update against the formula on decoded moments.
#include "device/moment_codes.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "device/update_kernels.h"

namespace zerorun {
namespace {

struct Codes {
  bool has_signs;
  std::vector<uint8_t> codes;
  std::vector<float> scales;

  explicit Codes(bool with_signs, int64_t numel = 0)
      : has_signs(with_signs),
        codes(static_cast<size_t>(numel)),
        scales(static_cast<size_t>(coded_blocks(numel))) {}

  static Codes of(const std::vector<float>& values, bool has_signs, Simd simd = widest_simd()) {
    Codes result(has_signs, static_cast<int64_t>(values.size()));
    encode(values.data(), static_cast<int64_t>(values.size()), has_signs, result.codes.data(),
           result.scales.data(), simd);
    return result;
  }

  std::vector<float> values() const {
    std::vector<float> result(codes.size());
    decode(codes.data(), scales.data(), static_cast<int64_t>(codes.size()), has_signs, result.data());
    return result;
  }

  bool operator==(const Codes&) const = default;
};

float float_of(const std::string& bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(bits, nullptr, 16)));
}

// The numbers that benchmarks/peers/record_codes.py draws.
std::vector<float> numbers_of(int block, bool has_signs) {
  uint64_t state = 12345 + static_cast<uint64_t>(block);
  std::vector<float> found;
  float largest = 0, smallest = 0;
  for (int i = 0; i < 256; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto value =
        std::ldexp(static_cast<float>(state >> 40), -(24 + static_cast<int>((state >> 34) % 16)));
    found.push_back(has_signs && (state >> 33 & 1) ? -value : value);
    largest = std::max(largest, found.back());
    smallest = std::min(smallest, found.back());
  }
  if (largest < -smallest) {
    for (float& value : found) value = -value;
  }
  return found;
}

std::vector<float> normal_numbers(int64_t numel, uint32_t seed, bool has_signs) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int64_t i = 0; i < numel; ++i) {
    const float value = normal(random) * std::ldexp(1.0F, -static_cast<int>(random() % 30));
    values.push_back(has_signs ? value : value * value);
  }
  return values;
}

constexpr AdamUpdate kAdamOfCodes{.beta1 = 0.9F,
                                  .new_in_first = 0.1F,
                                  .beta2 = 0.999F,
                                  .new_in_second = 0.001F,
                                  .step_size = 0.01F,
                                  .root_factor = 1.7F,
                                  .eps = 1e-8F,
                                  .gradient_decay = 0.01F,
                                  .value_decay = 1e-4F};

struct CodedState {
  std::vector<float> gradient, values;
  Codes first, second;

  explicit CodedState(int64_t numel)
      : gradient(normal_numbers(numel, 1, true)),
        values(normal_numbers(numel, 2, true)),
        first(Codes::of(normal_numbers(numel, 3, true), true)),
        second(Codes::of(normal_numbers(numel, 4, false), false)) {}

  UpdateSpan span() {
    return {.numel = static_cast<int64_t>(values.size()),
            .gradient = gradient.data(),
            .gradient_dtype = Dtype::fp32,
            .values = values.data(),
            .first = first.codes.data(),
            .second = second.codes.data(),
            .first_scales = first.scales.data(),
            .second_scales = second.scales.data()};
  }

  bool operator==(const CodedState&) const = default;
};

// Adam from torch's defaults, with fp32 moments or with moments in 8 bits.
struct Adam {
  std::vector<float> values, gradient, first, second;
  Codes first_codes, second_codes;
  bool in_8_bits;

  Adam(int64_t numel, bool coded)
      : values(static_cast<size_t>(numel)),
        gradient(values),
        first(values),
        second(values),
        first_codes(true, numel),
        second_codes(false, numel),
        in_8_bits(coded) {}

  void step(int number, float rate) {
    AdamUpdate rule = kAdamOfCodes;
    rule.gradient_decay = rule.value_decay = 0;
    rule.step_size = rate / (1 - std::pow(0.9F, static_cast<float>(number)));
    rule.root_factor = 1 / std::sqrt(1 - std::pow(0.999F, static_cast<float>(number)));
    UpdateSpan span{.numel = static_cast<int64_t>(values.size()),
                    .gradient = gradient.data(),
                    .gradient_dtype = Dtype::fp32,
                    .values = values.data(),
                    .first = first.data(),
                    .second = second.data()};
    if (in_8_bits) {
      span.first = first_codes.codes.data();
      span.second = second_codes.codes.data();
      span.first_scales = first_codes.scales.data();
      span.second_scales = second_codes.scales.data();
    }
    update(rule, 1, span);
  }
};

}  // namespace

TEST_CASE(
    "Codes are those of bitsandbytes: the values of code books to the bit, codes and scales of blocks") {
  std::ifstream file(ZERORUN_SOURCE_DIR "/tests/device/data/bitsandbytes_codes.txt");
  int books = 0, blocks = 0, all_others = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, first;
    words >> kind >> first;
    const bool has_signs = kind == "signed";
    const CodeBook& book = has_signs ? kSignedBook : kUnsignedBook;
    std::string rest;
    words >> rest;
    if (rest.size() == 8) {
      std::vector<float> values{float_of(first), float_of(rest)};
      while (words >> rest) values.push_back(float_of(rest));
      CHECK(std::vector<float>(std::begin(book.values), std::end(book.values)) == values);
      ++books;
      blocks = 0;
      continue;
    }
    CAPTURE(kind, blocks);
    const std::vector<float> numbers = numbers_of(blocks++, has_signs);
    for (const Simd simd : available_simds()) {
      const Codes codes = Codes::of(numbers, has_signs, simd);
      CHECK(codes.scales == std::vector<float>{float_of(first)});
      int others = 0;
      for (size_t i = 0; i < 256; ++i) {
        const auto theirs = static_cast<uint8_t>(std::stoul(rest.substr(2 * i, 2), nullptr, 16));
        const auto ours = static_cast<uint8_t>(codes.codes[i] + book.limits.zero);
        others += ours != theirs;
        // Squares do not become 0.
        if (ours != theirs) CHECK((!has_signs && theirs == 0 && ours == 1 && numbers[i] > 0));
      }
      all_others += others;
    }
  }
  CHECK(books == 2);
  CHECK(blocks == 8);
  CHECK(all_others == static_cast<int>(available_simds().size()));  // one of 4,096 numbers
}

TEST_CASE("An element gets the code of the nearest value") {
  for (const bool has_signs : {true, false}) {
    const CodeBook& book = has_signs ? kSignedBook : kUnsignedBook;
    const std::vector<float> given = normal_numbers(100000, 5, has_signs);
    const Codes codes = Codes::of(given, has_signs);
    double farther = 0;  // how much farther than the nearest value, as a share of the element
    for (size_t i = 0; i < given.size(); ++i) {
      const double share = static_cast<double>(given[i]) / codes.scales[i / 256];
      const auto distance = [&](float value) { return std::abs(share - static_cast<double>(value)); };
      double nearest = std::numeric_limits<double>::infinity();
      for (const float value : book.values) nearest = std::min(nearest, distance(value));
      if (!has_signs && given[i] > 0 && share < book.limits.begins[0]) {
        CHECK(codes.codes[i] == 1);
        continue;
      }
      const double chosen = distance(book.values[static_cast<uint8_t>(codes.codes[i] + book.limits.zero)]);
      if (chosen > nearest) farther = std::max(farther, (chosen - nearest) / std::abs(share));
    }
    CHECK(farther <= 1e-6);
  }
}

TEST_CASE("Elements that are decoded and encoded again keep codes and scales, on every path") {
  for (const bool has_signs : {true, false}) {
    for (const int exponent : {0, 20, 100, -20, -60, -100}) {
      std::vector<float> given = normal_numbers(1000, 6, has_signs);
      for (float& value : given) value = std::ldexp(value, exponent);
      const Codes once = Codes::of(given, has_signs, Simd::portable);
      for (const Simd simd : available_simds()) {
        CAPTURE(has_signs, exponent, name_of(simd));
        CHECK(Codes::of(given, has_signs, simd) == once);
        CHECK(Codes::of(once.values(), has_signs, simd) == once);
      }
    }
  }
}

TEST_CASE("The element with the largest magnitude is exact, also a negative one") {
  for (const float largest : {3.0F, -3.0F}) {
    std::vector<float> given(256, 0.5F);
    given[100] = largest;
    given[200] = -1.0F;
    const Codes codes = Codes::of(given, true);
    CHECK(codes.scales[0] == largest);
    CHECK(codes.values()[100] == largest);
    CHECK(codes.values()[200] < 0);
  }
  // Of two such elements the positive one.
  std::vector<float> both(256, 0.0F);
  both[3] = -2.0F;
  both[5] = 2.0F;
  CHECK(Codes::of(both, true).scales[0] == 2.0F);
}

TEST_CASE("Zeroed memory is a block of zeros, and what is not finite stays seen") {
  CHECK(Codes(true, 256).values() == std::vector<float>(256));
  CHECK(Codes::of(std::vector<float>(256), true) == Codes(true, 256));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> given(512, 1.0F);
    given[7] = bad;
    const std::vector<float> seen = Codes::of(given, true).values();
    CHECK(std::isnan(seen[7]));
    CHECK(seen[256] == 1.0F);
  }
}

TEST_CASE("A row whose gradients end does not take large steps") {
  // Four rows share a block. The last one gets one gradient, a tenth as large as those of the others.
  const auto farthest = [](bool in_8_bits) {
    Adam adam(256, in_8_bits);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int step = 1; step <= 200; ++step) {
      for (size_t i = 0; i < 256; ++i) {
        const float drawn = normal(random);
        adam.gradient[i] = i < 192 ? drawn : step == 50 ? 0.1F * drawn : 0.0F;
      }
      adam.step(step, 0.001F);
    }
    float moved = 0;
    for (size_t i = 192; i < 256; ++i) moved = std::max(moved, std::abs(adam.values[i]));
    return moved;
  };
  const float wide = farthest(false), narrow = farthest(true);
  CAPTURE(wide, narrow);
  CHECK(narrow > wide / 2);
  CHECK(narrow < 2 * wide);
}

TEST_CASE("An update with moments in 8 bits is the update of the decoded ones, on every path") {
  for (const int64_t numel : {1, 255, 256, 257, 5000}) {
    CodedState before(numel);
    std::vector<float> values = before.values;
    std::vector<float> first = before.first.values(), second = before.second.values();
    UpdateSpan wide = before.span();
    wide.values = values.data();
    wide.first = first.data();
    wide.second = second.data();
    wide.first_scales = wide.second_scales = nullptr;
    update(kAdamOfCodes, 0.25F, wide, Simd::portable);
    for (const Simd simd : available_simds()) {
      CAPTURE(numel, name_of(simd));
      CodedState after = before;
      update(kAdamOfCodes, 0.25F, after.span(), simd);
      CHECK(after.values == values);
      CHECK(after.first == Codes::of(first, true));
      CHECK(after.second == Codes::of(second, false));
    }
    CodedState divided = before;
    for (const int64_t begin : {int64_t{0}, int64_t{256}, int64_t{1024}}) {
      const int64_t end = begin == 0 ? 256 : begin == 256 ? 1024 : numel;
      if (begin < numel)
        update(kAdamOfCodes, 0.25F, divided.span().slice(begin, std::min(end, numel) - begin));
    }
    CodedState whole = before;
    update(kAdamOfCodes, 0.25F, whole.span());
    CHECK(divided == whole);
  }
}

TEST_CASE("Adam with moments in 8 bits minimizes what it minimizes with fp32 ones") {
  // A quadratic function whose curvatures differ by 1,000.
  constexpr int64_t kNumel = 512;
  const auto lowest = [](bool in_8_bits) {
    Adam adam(kNumel, in_8_bits);
    std::ranges::fill(adam.values, 1.0F);
    for (int step = 1; step <= 400; ++step) {
      for (size_t i = 0; i < kNumel; ++i)
        adam.gradient[i] = adam.values[i] * std::pow(10.0F, 3.0F * static_cast<float>(i) / kNumel);
      adam.step(step, 0.01F);
    }
    return std::accumulate(adam.values.begin(), adam.values.end(), 0.0,
                           [](double sum, float value) { return sum + std::abs(value); }) /
           kNumel;
  };
  const double wide = lowest(false), narrow = lowest(true);
  CAPTURE(wide, narrow);
  CHECK(wide < 0.05);
  CHECK(narrow < 0.05);
}

}  // namespace zerorun
