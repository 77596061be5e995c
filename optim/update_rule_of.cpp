#include "optim/update_rule_of.h"

#include <cmath>

namespace zerorun {
namespace {

float rounded(double value) {
  return static_cast<float>(value);
}

AdamUpdate adam_update(const OptimizerConfig& config, int64_t step) {
  const auto steps = static_cast<double>(step);
  const double correction1 = config.bias_correction ? 1 - std::pow(config.beta1, steps) : 1;
  const double correction2 = config.bias_correction ? 1 - std::pow(config.beta2, steps) : 1;
  const bool decoupled = config.type == OptimizerType::adam_w;
  return {.beta1 = rounded(config.beta1),
          .new_in_first = rounded(1 - config.beta1),
          .beta2 = rounded(config.beta2),
          .new_in_second = rounded(1 - config.beta2),
          .step_size = rounded(config.lr / correction1),
          .root_factor = rounded(1 / std::sqrt(correction2)),
          .eps = rounded(config.eps),
          .gradient_decay = rounded(decoupled ? 0 : config.weight_decay),
          .value_decay = rounded(decoupled ? config.lr * config.weight_decay : 0)};
}

UpdateRule adam_rule(const OptimizerConfig& config, int64_t step) {
  const AdamUpdate adam = adam_update(config, step);
  if (config.amsgrad) return AmsgradUpdate{adam};
  return adam;
}

UpdateRule sgd_rule(const OptimizerConfig& config, int64_t step) {
  const float lr = rounded(config.lr);
  const float decay = rounded(config.weight_decay);
  if (config.momentum == 0) return SgdUpdate{.lr = lr, .gradient_decay = decay};
  const float momentum = rounded(config.momentum);
  return MomentumUpdate{.lr = lr,
                        .gradient_decay = decay,
                        .momentum = momentum,
                        .new_in_first = rounded(step == 1 ? 1 : 1 - config.dampening),
                        .of_gradient = config.nesterov ? 1.0F : 0.0F,
                        .of_first = config.nesterov ? momentum : 1.0F};
}

AdagradUpdate adagrad_rule(const OptimizerConfig& config, int64_t step) {
  return {.step_size = rounded(config.lr / (1 + static_cast<double>(step - 1) * config.lr_decay)),
          .eps = rounded(config.eps),
          .gradient_decay = rounded(config.weight_decay)};
}

template <bool kCentered, bool kMomentum>
RmspropRule<kCentered, kMomentum> rmsprop_update(const OptimizerConfig& config) {
  return {.lr = rounded(config.lr),
          .alpha = rounded(config.alpha),
          .new_in_average = rounded(1 - config.alpha),
          .eps = rounded(config.eps),
          .gradient_decay = rounded(config.weight_decay),
          .momentum = rounded(config.momentum)};
}

UpdateRule rmsprop_rule(const OptimizerConfig& config) {
  const bool has_momentum = config.momentum != 0;
  if (config.centered && has_momentum) return rmsprop_update<true, true>(config);
  if (config.centered) return rmsprop_update<true, false>(config);
  if (has_momentum) return rmsprop_update<false, true>(config);
  return rmsprop_update<false, false>(config);
}

// Where the direction is exactly 0 an element stays, as in the paper. DeepSpeed's kernels take a sign there
// too: on GPUs the element goes up, on CPUs down.
LionUpdate lion_rule(const OptimizerConfig& config) {
  return {.lr = rounded(config.lr),
          .beta1 = rounded(config.beta1),
          .new_in_step = rounded(1 - config.beta1),
          .beta2 = rounded(config.beta2),
          .new_in_first = rounded(1 - config.beta2),
          .kept = rounded(1 - config.lr * config.weight_decay)};
}

}  // namespace

UpdateRule update_rule_of(const OptimizerConfig& config, int64_t step) {
  switch (config.type) {
    case OptimizerType::adam_w:
    case OptimizerType::adam:
      return adam_rule(config, step);
    case OptimizerType::sgd:
      return sgd_rule(config, step);
    case OptimizerType::adagrad:
      return adagrad_rule(config, step);
    case OptimizerType::rmsprop:
      return rmsprop_rule(config);
    case OptimizerType::lion:
      return lion_rule(config);
    case OptimizerType::muon:
      return SgdUpdate{.lr = rounded(config.lr),
                       .gradient_decay = 0,
                       .kept = rounded(1 - config.lr * config.weight_decay)};
    case OptimizerType::lamb:
      break;  // no rule for elements
  }
  return {};
}

int moments_of(const OptimizerConfig& config) {
  return std::visit([](const auto& rule) { return rule.kMoments; }, update_rule_of(config, 1));
}

}  // namespace zerorun
