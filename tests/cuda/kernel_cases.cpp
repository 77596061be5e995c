#include "tests/cuda/kernel_cases.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "base/narrow_floats.h"
#include "device/dtypes.h"
#include "device/step_facts.h"
#include "tests/cuda/kernel_results.h"

namespace zerorun::testing {
namespace {

using namespace std::chrono_literals;

const float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

struct Scaling {
  at::Tensor to, from;
  int64_t to_offset, from_offset;
  float factor;
};

// Returns the results of copies and sums, with and without a FiniteCheck, into other memory and in place.
Results scaled(Device& device, const Scaling& given) {
  Results results;
  const at::Tensor tally = new_tally(device);
  const FiniteCheck finite_check{tally, 5};
  const at::Tensor from = put(device, given.from, given.from_offset);
  for (const bool adds : {false, true}) {
    for (const bool asks : {false, true}) {
      const at::Tensor to = put(device, given.to, given.to_offset);
      if (adds && asks) device.add_scaled(to, from, given.factor, finite_check);
      if (adds && !asks) device.add_scaled(to, from, given.factor);
      if (!adds && asks) device.copy_scaled(to, from, given.factor, finite_check);
      if (!adds && !asks) device.copy_scaled(to, from, given.factor);
      results.push_back(get(device, to));
    }
  }
  CHECK(read_tally(device, tally).gradient == 0);
  device.copy_scaled(from, from, given.factor);
  results.push_back(get(device, from));
  return results;
}

Tally found_in(Device& device, const at::Tensor& to, const at::Tensor& from, float factor, bool adds) {
  const at::Tensor tally = new_tally(device);
  const at::Tensor target = put(device, to);
  const at::Tensor source = put(device, from);
  // In an optimizer step several kernels report to one tally. So the kernel runs twice on one tally here: it
  // reports the number 1000 first, and then 40.
  for (const int64_t number : {int64_t{1000}, int64_t{40}}) {
    if (adds) device.add_scaled(target, source, factor, {tally, number});
    if (!adds) device.copy_scaled(target, source, factor, {tally, number});
  }
  return read_tally(device, tally);
}

Tally squares_in(Device& device, const at::Tensor& values, int64_t offset, double before) {
  const at::Tensor tally = new_tally(device);
  device.add_squares(tally, put(device, from_floats({static_cast<float>(before)}, at::kFloat)), 500, 1);
  device.add_squares(tally, put(device, values, offset), 1000, 1);
  return read_tally(device, tally);
}

}  // namespace

void check_copies(Device& tested, const Sizes& sizes) {
  for (at::ScalarType to : kDtypes) {
    for (at::ScalarType from : kDtypes) {
      for (int64_t numel : sizes) {
        for (int64_t offset : offsets_for(numel)) {
          for (float factor : {1.0F, 1.0F / 3}) {
            const Scaling given{random_values(numel, to, 1), random_values(numel, from, 2), offset,
                                (offset * 3) % 8, factor};
            INFO(from << " to " << to << ", " << numel << " values from " << offset << " on, factor "
                      << factor);
            check_same(scaled(tested, given), scaled(cpu_device(), given));
          }
        }
      }
    }
  }
}

void check_findings(Device& tested) {
  constexpr int64_t kNumel = 5000;
  struct Case {
    const char* what;
    std::vector<std::pair<int64_t, float>> values;
    float factor;
  };
  const std::vector<Case> cases = {
      {"nothing", {}, 1},
      {"an infinity", {{4711, kInfinity}}, 1},
      {"the other", {{0, -kInfinity}}, 0.5F},
      {"a NaN", {{4999, kNan}}, 1},
      {"products that are too large", {{17, 60000.0F}, {4000, -60000.0F}}, 1e34F},
      {"too large for fp16 alone", {{17, 60000.0F}}, 1.2F},
      {"the largest that fp16 has not", {{17, 65520.0F}}, 1},
      {"too large first, NaN behind it", {{17, 60000.0F}, {4000, kNan}}, 1e34F},
      {"infinity times zero", {{1234, kInfinity}}, 0},
  };
  for (at::ScalarType to : kDtypes) {
    for (at::ScalarType from : kDtypes) {
      for (const Case& given : cases) {
        for (const bool adds : {false, true}) {
          std::vector<float> floats = to_floats(random_values(kNumel, at::kFloat, 1));
          for (const auto& [place, value] : given.values) floats[place] = value;
          const at::Tensor target = random_values(kNumel, to, 2);
          INFO(given.what << ", " << from << " to " << to << (adds ? ", added" : ""));
          const at::Tensor source = from_floats(floats, from);
          CHECK(found_in(tested, target, source, given.factor, adds).gradient ==
                found_in(cpu_device(), target, source, given.factor, adds).gradient);
        }
      }
    }
  }
}

void check_squares(Device& tested, const Sizes& sizes) {
  for (at::ScalarType dtype : kDtypes) {
    for (int64_t numel : sizes) {
      INFO(numel << " values of " << dtype);
      std::vector<float> whole(numel);
      for (int64_t i = 0; i < numel; ++i) whole[i] = static_cast<float>(i % 100 - 50);
      const at::Tensor exact = from_floats(whole, dtype);
      CHECK(squares_in(tested, exact, 0, 3).squares == squares_in(cpu_device(), exact, 0, 3).squares);
      at::Tensor values = random_values(numel, dtype, 3);
      const double wanted = squares_in(cpu_device(), values, 0, 2).squares;
      const double found = squares_in(tested, values, 0, 2).squares;
      CHECK(std::abs(found - wanted) <= 1e-12 * wanted);
      for (int64_t offset : offsets_for(numel)) CHECK(squares_in(tested, values, offset, 2).squares == found);
      const at::Tensor wide = from_floats(to_floats(values), at::kFloat);
      CHECK(squares_in(tested, wide, 0, 2).squares == found);
      for (int64_t first : {int64_t{0}, numel / 3, numel - 1}) {
        if (numel == 0) continue;
        std::vector<float> floats = to_floats(values);
        floats[numel - 1] = kInfinity;
        floats[first] = kNan;
        const Tally tally = squares_in(tested, from_floats(floats, dtype), 1, 2);
        CHECK(number_in(tally.sum) == 1000 + first);
        CHECK_FALSE(std::isfinite(tally.squares));
      }
    }
  }
}

void check_following(Device& tested, const Sizes& sizes) {
  for (at::ScalarType dtype : kDtypes) {
    for (int64_t numel : sizes) {
      for (int64_t offset : offsets_for(numel)) {
        INFO(numel << " values of " << dtype << " from " << offset << " on");
        const std::vector<float> floats = to_floats(random_values(numel, at::kFloat, 1));
        const at::Tensor master = from_floats(floats, at::kFloat);
        std::vector<float> written = floats;
        for (int64_t i = 0; i < numel; i += 3) written[i] = i % 2 ? 0.75F : kNan;
        const at::Tensor values = from_floats(written, dtype);
        auto followed = [&](Device& device) {
          const at::Tensor own = put(device, master, offset);
          device.follow_written(own, put(device, values, (offset * 3) % 8));
          return Results{get(device, own)};
        };
        check_same(followed(tested), followed(cpu_device()));
      }
    }
  }
}

void check_step_facts(Device& tested) {
  constexpr int kRanks = 5;
  for (const float value : {3.0F, 0.0F, kInfinity, kNan}) {
    for (const double clipping : {0.0, 1.0}) {
      INFO("a gradient of " << value << ", clipping at " << clipping);
      auto exchanged = [&](Device& device) {
        const at::Tensor exchange = device.allocate(exchanged_numel(kRanks) + kFactsNumel, at::kDouble);
        const at::Tensor tally = new_tally(device);
        const at::Tensor values = put(device, from_floats({1.5F, value}, at::kFloat));
        device.copy_scaled(values, values, 1, {tally, 7});
        device.add_squares(tally, values, 100, 1);
        device.publish(exchange, tally, 3, kRanks);
        const at::Tensor published = get(device, exchange);
        device.decide(exchange, kRanks, {.scale = 2, .clipping = clipping});
        return Results{published, get(device, tally), get(device, exchange)};
      };
      check_same(exchanged(tested), exchanged(cpu_device()));
    }
  }
}

void check_decisions(Device& tested) {
  for (const int ranks : {1, 2, 1000, 7000}) {
    INFO(ranks << " ranks");
    at::Tensor exchange = at::zeros({exchanged_numel(ranks) + kFactsNumel}, at::kDouble);
    // Sums of many magnitudes, whose total depends on the order of the additions.
    exchange.narrow(0, 0, ranks).copy_(random_values(ranks, at::kFloat, 1).to(at::kDouble).abs().sqrt());
    auto decided = [&](Device& device) {
      const at::Tensor own = put(device, exchange);
      device.decide(own, ranks, {.scale = 2, .clipping = 1});
      return Results{get(device, own)};
    };
    check_same(decided(tested), decided(cpu_device()));
  }
}

at::Tensor random_values(int64_t numel, at::ScalarType dtype, uint64_t seed) {
  std::mt19937_64 random(seed + static_cast<uint64_t>(numel));
  constexpr int64_t kDrawn = 65537;  // after this number of values, they repeat
  std::vector<float> floats(numel);
  for (int64_t i = 0; i < numel; ++i) {
    float& value = floats[i];
    if (i >= kDrawn) {
      value = floats[i - kDrawn];
      continue;
    }
    const uint64_t drawn = random();
    const auto mantissa = static_cast<float>(1 + static_cast<double>(drawn >> 11) * 0x1p-53);
    const int exponent = drawn % 16 == 0 ? -140 + static_cast<int>(drawn / 16 % 20)  // subnormal in fp32
                                         : static_cast<int>(drawn / 16 % 38) - 26;   // or subnormal in fp16
    value = drawn % 64 == 1 ? 0.0F : std::ldexp(mantissa, exponent);
    if (drawn / 1024 % 2 == 1) value = -value;
  }
  return from_floats(floats, dtype);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.numel() != b.numel()) return false;
  if (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) return true;
  auto same = [](auto left, auto right) {
    return (std::isnan(left) && std::isnan(right)) || std::memcmp(&left, &right, sizeof left) == 0;
  };
  if (a.scalar_type() == at::kDouble) {
    const auto* doubles = a.const_data_ptr<double>();
    return std::equal(doubles, doubles + a.numel(), b.const_data_ptr<double>(), same);
  }
  const std::vector<float> left = to_floats(a);
  const std::vector<float> right = to_floats(b);
  return std::equal(left.begin(), left.end(), right.begin(), same);
}

at::Tensor put(Device& device, const at::Tensor& values, int64_t offset) {
  const at::Tensor memory = device.allocate(offset + values.numel(), values.scalar_type());
  at::Tensor placed = memory.slice(0, offset);
  device.copy(placed, values);
  return placed;
}

at::Tensor get(Device& device, const at::Tensor& values) {
  at::Tensor copy = at::zeros({values.numel()}, values.scalar_type());
  device.copy(copy, values);
  Event copied;
  device.streams().record(copied, device.streams().current());
  device.streams().await(copied, 60s, "a kernel under test");
  return copy;
}

at::Tensor new_tally(Device& device) {
  return device.allocate(sizeof(Tally) / sizeof(double), at::kDouble);
}

Tally read_tally(Device& device, const at::Tensor& tally) {
  Tally read;
  std::memcpy(&read, get(device, tally).const_data_ptr(), sizeof read);
  return read;
}

}  // namespace zerorun::testing
