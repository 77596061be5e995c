// Tests device/step_facts.h: the gradient norm, the clipping divisor, and the exchange between ranks that
// shows which gradients are not finite.
#include "device/step_facts.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace zerorun {

TEST_CASE("clip divisor: (norm + 1e-6) / limit where that exceeds 1, else 1") {
  CHECK(clip_divisor(10, 1) == (10 + 1e-6) / 1);
  CHECK(clip_divisor(3, 0.1) == (3 + 1e-6) / 0.1);
  CHECK(clip_divisor(1, 1) == 1 + 1e-6);
  CHECK(clip_divisor(0.999, 1) == 1);
  CHECK(clip_divisor(0, 1) == 1);
}

TEST_CASE("clip divisor: a limit of 0 or below clips nothing") {
  CHECK(clip_divisor(1e30, 0) == 1);
  CHECK(clip_divisor(1e30, -1) == 1);
}

TEST_CASE("step facts: the norm is of the averaged gradient, rounded to float32") {
  const std::vector<double> squares = {9, 16, 0.5};
  const StepFacts facts = decide(squares.data(), 3, {.scale = 4, .clipping = 0});
  CHECK(facts.norm == static_cast<float>(std::sqrt(25.5) / 4));
  CHECK(facts.divisor == 4);
  CHECK(facts.factor == 0.25F);
  CHECK(facts.apply == 1);
}

TEST_CASE("step facts: the divisor is the scale times the clip divisor") {
  const std::vector<double> squares = {64};
  const StepFacts facts = decide(squares.data(), 1, {.scale = 2, .clipping = 0.5});
  CHECK(facts.norm == 4);
  CHECK(facts.divisor == 2 * ((4 + 1e-6) / 0.5));
  CHECK(facts.factor == static_cast<float>(1 / facts.divisor));
}

TEST_CASE("step facts: a norm beyond float32 is kept as it is") {
  const std::vector<double> squares = {1e80};
  CHECK(decide(squares.data(), 1, {.scale = 1, .clipping = 0}).norm == 1e40);
}

TEST_CASE("step facts: a gradient that is not finite is not applied, and its norm is infinite") {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const std::vector<double> squares = {1, bad, 1};
    const StepFacts facts = decide(squares.data(), 3, {.scale = 1, .clipping = 1});
    CHECK(facts.apply == 0);
    CHECK(std::isinf(facts.norm));
  }
}

TEST_CASE("slots: the smallest reported number wins, and 0 means that nothing was reported") {
  CHECK(number_in(0) == 0);
  for (const int64_t number : {int64_t{1}, int64_t{2}, int64_t{1} << 52}) {
    CHECK(number_in(slot_of(number)) == number);
    CHECK(slot_of(number) > slot_of(number + 1));
    CHECK(slot_of(number) > 0);
  }
}

TEST_CASE("exchange: each rank fills in its own elements, so that the sum has those of all ranks") {
  constexpr int kRanks = 3;
  std::vector<double> sum(exchanged_numel(kRanks));
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<double> own(exchanged_numel(kRanks), 7);
    publish({.squares = 10.0 + rank, .gradient = rank == 1 ? slot_of(42) : 0, .sum = slot_of(100 + rank)},
            own.data(), rank, kRanks);
    for (size_t i = 0; i < own.size(); ++i) sum[i] += own[i];
  }
  CHECK(sum == std::vector<double>{10, 11, 12, 0, 42, 0, 100, 101, 102});
}

}  // namespace zerorun
