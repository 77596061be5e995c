// The checks of kernels that update values and moments.
#include <ATen/ops/empty.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <type_traits>
#include <variant>

#include "device/moment_codes.h"
#include "device/step_facts.h"
#include "tests/cuda/kernel_cases.h"
#include "tests/cuda/kernel_results.h"

namespace zerorun::testing {
namespace {

constexpr AdamUpdate kAdam{.beta1 = 0.9F,
                           .new_in_first = 0.1F,
                           .beta2 = 0.999F,
                           .new_in_second = 0.001F,
                           .step_size = 0.01F,
                           .root_factor = 1.7F,
                           .eps = 1e-8F,
                           .gradient_decay = 0.01F,
                           .value_decay = 1e-4F};
template <typename Rule>
constexpr Rule kRmsprop{.lr = 0.003F,
                        .alpha = 0.99F,
                        .new_in_average = 0.01F,
                        .eps = 1e-8F,
                        .gradient_decay = 0.01F,
                        .momentum = 0.9F};
const UpdateRule kRules[] = {kAdam,
                             SgdUpdate{.lr = 0.03F, .gradient_decay = 0.01F},
                             MomentumUpdate{.lr = 0.03F,
                                            .gradient_decay = 0.01F,
                                            .momentum = 0.9F,
                                            .new_in_first = 0.7F,
                                            .of_gradient = 1,
                                            .of_first = 0.9F},
                             LionUpdate{.lr = 0.003F,
                                        .beta1 = 0.9F,
                                        .new_in_step = 0.1F,
                                        .beta2 = 0.99F,
                                        .new_in_first = 0.01F,
                                        .kept = 0.9997F},
                             AmsgradUpdate{kAdam},
                             AdagradUpdate{.step_size = 0.01F, .eps = 1e-10F, .gradient_decay = 0.01F},
                             kRmsprop<RmspropUpdate>,
                             kRmsprop<CenteredRmspropUpdate>,
                             kRmsprop<RmspropMomentumUpdate>,
                             kRmsprop<CenteredRmspropMomentumUpdate>,
                             SgdUpdate{.lr = 0.03F, .gradient_decay = 0, .kept = 0.99F},
                             LambDirection{.beta1 = 0.9F,
                                           .new_in_first = 0.1F,
                                           .beta2 = 0.999F,
                                           .new_in_second = 0.001F,
                                           .eps_in_root = 0,
                                           .eps = 1e-6F,
                                           .decay = 0.01F}};

template <typename Rule>
constexpr bool kSquaresFirst = std::is_same_v<Rule, AdagradUpdate>;
template <bool kCentered, bool kMomentum>
constexpr bool kSquaresFirst<RmspropRule<kCentered, kMomentum>> = true;

int moments_of(const UpdateRule& rule) {
  return std::visit([](const auto& formula) { return formula.kMoments; }, rule);
}

bool has_squares_first(const UpdateRule& rule) {
  return std::visit([](const auto& formula) { return kSquaresFirst<std::decay_t<decltype(formula)>>; }, rule);
}

// Which state is bfloat16, and whether it is rounded at random.
struct NarrowState {
  bool values = false, moments = false, random = false;
  bool codes = false;  // moments are in 8 bits
};

struct UpdateCase {
  UpdateRule rule;
  at::ScalarType gradient;
  at::ScalarType rounded;  // kFloat: no rounded copy
  int64_t numel;
  int64_t offset;
  int32_t apply;
  NarrowState narrow = {};
};

// Replaces fp32 moments by codes.
void put_codes(Device& device, UpdateTensors& tensors) {
  const auto coded = [&](at::Tensor& moment, at::Tensor& scales, bool has_signs) {
    if (!moment.defined()) return;
    const at::Tensor numbers = get(device, moment);
    const at::Tensor codes = at::empty({numbers.numel()}, at::kByte);
    const at::Tensor of_blocks = at::empty({coded_blocks(numbers.numel())}, at::kFloat);
    encode(numbers.const_data_ptr<float>(), numbers.numel(), has_signs, codes.mutable_data_ptr<uint8_t>(),
           of_blocks.mutable_data_ptr<float>());
    moment = put(device, codes);
    scales = put(device, of_blocks);
  };
  coded(tensors.first, tensors.first_scales, true);
  coded(tensors.second, tensors.second_scales, false);
}

Results updated(Device& device, const UpdateCase& given) {
  const int moments = moments_of(given.rule);
  const at::ScalarType of_moments = given.narrow.moments ? at::kBFloat16 : at::kFloat;
  auto moment = [&](uint64_t seed) {
    return put(device, random_values(given.numel, of_moments, seed), given.offset);
  };
  UpdateTensors tensors;
  // The offsets of all cases together cover aligned tensors, unaligned tensors, and mixtures of both.
  tensors.gradient = put(device, random_values(given.numel, given.gradient, 1), (given.offset * 3) % 8);
  const at::ScalarType of_values = given.narrow.values ? at::kBFloat16 : at::kFloat;
  tensors.values = put(device, random_values(given.numel, of_values, 2), given.offset);
  if (given.narrow.random) tensors.rounding = {.is_on = true, .key = 11, .first = given.offset};
  auto squares = [&](uint64_t seed) {
    std::vector<float> drawn = to_floats(random_values(given.numel, at::kFloat, seed));
    for (float& value : drawn) value *= value;
    return put(device, from_floats(drawn, of_moments), given.offset);
  };
  const bool squares_first = has_squares_first(given.rule);
  if (moments > 0) tensors.first = squares_first ? squares(3) : moment(3);
  if (moments > 1) tensors.second = squares_first ? moment(4) : squares(4);
  if (moments > 2) tensors.third = squares_first ? moment(6) : squares(6);
  if (given.narrow.codes) put_codes(device, tensors);
  if (given.rounded != at::kFloat) {
    tensors.rounded = put(device, random_values(given.numel, given.rounded, 5), given.offset / 4);
  }
  const StepFacts facts{.norm = 1, .divisor = 3, .factor = 1.0F / 3, .apply = given.apply};
  at::Tensor known = at::empty({kFactsNumel}, at::kDouble);
  std::memcpy(known.mutable_data_ptr(), &facts, sizeof facts);
  device.update(given.rule, tensors, put(device, known));
  Results results;
  for (const at::Tensor& tensor :
       {tensors.gradient, tensors.values, tensors.first, tensors.second, tensors.third, tensors.rounded,
        tensors.first_scales, tensors.second_scales}) {
    if (tensor.defined()) results.push_back(get(device, tensor));
  }
  return results;
}

}  // namespace

void check_updates(Device& tested, const Sizes& sizes) {
  for (const UpdateRule& rule : kRules) {
    for (at::ScalarType gradient : kDtypes) {
      for (at::ScalarType rounded : kDtypes) {
        for (int64_t numel : sizes) {
          for (int64_t offset : offsets_for(numel)) {
            for (int32_t apply : {1, 0}) {
              if (numel > kMany && (gradient != rounded || offset == 0 || apply == 0)) continue;
              const UpdateCase given{rule, gradient, rounded, numel, offset, apply};
              INFO("rule " << rule.index() << ", gradient in " << gradient << ", rounded to " << rounded
                           << ", " << numel << " values from " << offset << " on, apply " << apply);
              check_same(updated(tested, given), updated(cpu_device(), given));
            }
          }
        }
      }
    }
  }
}

void check_coded_updates(Device& tested, const Sizes& sizes) {
  for (const UpdateRule& rule : kRules) {
    if (!std::holds_alternative<AdamUpdate>(rule) && !std::holds_alternative<LionUpdate>(rule)) continue;
    for (const at::ScalarType gradient : kDtypes) {
      for (const NarrowState& narrow :
           {NarrowState{.codes = true}, NarrowState{.values = true, .random = true, .codes = true}}) {
        for (const int64_t numel : sizes) {
          for (const int32_t apply : {1, 0}) {
            const at::ScalarType rounded = narrow.values ? at::kFloat : gradient;
            const UpdateCase given{rule, gradient, rounded, numel, 0, apply, narrow};
            INFO("rule " << rule.index() << ", gradient in " << gradient << ", bfloat16 values "
                         << narrow.values << ", " << numel << " values, apply " << apply);
            check_same(updated(tested, given), updated(cpu_device(), given));
          }
        }
      }
    }
  }
}

void check_narrow_updates(Device& tested, const Sizes& sizes) {
  for (const UpdateRule& rule : kRules) {
    for (at::ScalarType gradient : {at::kFloat, at::kBFloat16}) {
      for (const NarrowState& narrow : {NarrowState{true, true, false}, NarrowState{true, true, true},
                                        NarrowState{true, false, true}, NarrowState{false, true, false}}) {
        for (int64_t numel : sizes) {
          for (int64_t offset : offsets_for(numel)) {
            const at::ScalarType rounded = narrow.values ? at::kFloat : at::kBFloat16;
            const UpdateCase given{rule, gradient, rounded, numel, offset, 1, narrow};
            INFO("rule " << rule.index() << ", gradient in " << gradient << ", bfloat16 values "
                         << narrow.values << " and moments " << narrow.moments << ", at random "
                         << narrow.random << ", " << numel << " values from " << offset << " on");
            check_same(updated(tested, given), updated(cpu_device(), given));
          }
        }
      }
    }
  }
}

}  // namespace zerorun::testing
