#include "optim/update_rule_of.h"

#include <cmath>

#include "base/error.h"

namespace zerorun {
namespace {

float rounded(double value) {
  return static_cast<float>(value);
}

AdamUpdate adam_update(const AdamConfig& config, int64_t step) {
  const auto steps = static_cast<double>(step);
  const double correction1 = config.bias_correction ? 1 - std::pow(config.beta1, steps) : 1;
  const double correction2 = config.bias_correction ? 1 - std::pow(config.beta2, steps) : 1;
  return {.beta1 = rounded(config.beta1),
          .new_in_first = rounded(1 - config.beta1),
          .beta2 = rounded(config.beta2),
          .new_in_second = rounded(1 - config.beta2),
          .step_size = rounded(config.lr / correction1),
          .root_factor = rounded(1 / std::sqrt(correction2)),
          .eps = rounded(config.eps),
          .gradient_decay = rounded(config.decoupled ? 0 : config.weight_decay),
          .value_decay = rounded(config.decoupled ? config.lr * config.weight_decay : 0)};
}

UpdateRule rule_of(const AdamConfig& config, int64_t step) {
  const AdamUpdate adam = adam_update(config, step);
  if (config.amsgrad) return AmsgradUpdate{adam};
  return adam;
}

UpdateRule rule_of(const SgdConfig& config, int64_t step) {
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

UpdateRule rule_of(const AdagradConfig& config, int64_t step) {
  return AdagradUpdate{
      .step_size = rounded(config.lr / (1 + static_cast<double>(step - 1) * config.lr_decay)),
      .eps = rounded(config.eps),
      .gradient_decay = rounded(config.weight_decay)};
}

template <bool kCentered, bool kMomentum>
RmspropRule<kCentered, kMomentum> rmsprop_update(const RmspropConfig& config) {
  return {.lr = rounded(config.lr),
          .alpha = rounded(config.alpha),
          .new_in_average = rounded(1 - config.alpha),
          .eps = rounded(config.eps),
          .gradient_decay = rounded(config.weight_decay),
          .momentum = rounded(config.momentum)};
}

UpdateRule rule_of(const RmspropConfig& config, int64_t /*step*/) {
  const bool has_momentum = config.momentum != 0;
  if (config.centered && has_momentum) return rmsprop_update<true, true>(config);
  if (config.centered) return rmsprop_update<true, false>(config);
  if (has_momentum) return rmsprop_update<false, true>(config);
  return rmsprop_update<false, false>(config);
}

// An element whose direction is exactly 0 does not move, as in the paper. DeepSpeed's kernels move it: up on
// GPUs, down on CPUs.
UpdateRule rule_of(const LionConfig& config, int64_t /*step*/) {
  return LionUpdate{.lr = rounded(config.lr),
                    .beta1 = rounded(config.beta1),
                    .new_in_step = rounded(1 - config.beta1),
                    .beta2 = rounded(config.beta2),
                    .new_in_first = rounded(1 - config.beta2),
                    .kept = rounded(1 - config.lr * config.weight_decay)};
}

UpdateRule rule_of(const MuonConfig& config, int64_t /*step*/) {
  return SgdUpdate{
      .lr = rounded(config.lr), .gradient_decay = 0, .kept = rounded(1 - config.lr * config.weight_decay)};
}

UpdateRule rule_of(const LambConfig& /*config*/, int64_t /*step*/) {
  throw InternalError(
      "Lamb has no rule for single elements: optim/lamb_optimizer.cpp updates its parameters");
}

using Names = std::vector<const char*>;

Names moments(const AdamConfig& config) {
  return config.amsgrad ? Names{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"} : Names{"exp_avg", "exp_avg_sq"};
}
Names moments(const SgdConfig& config) {
  return config.momentum != 0 ? Names{"momentum_buffer"} : Names{};
}
Names moments(const AdagradConfig& /*config*/) {
  return {"sum"};
}
Names moments(const RmspropConfig& config) {
  Names names = {"square_avg"};
  if (config.centered) names.push_back("grad_avg");
  if (config.momentum != 0) names.push_back("momentum_buffer");
  return names;
}
Names moments(const LionConfig& /*config*/) {
  return {"exp_avg"};
}
Names moments(const LambConfig& /*config*/) {
  return {"exp_avg", "exp_avg_sq"};
}
Names moments(const MuonConfig& /*config*/) {
  return {"momentum_buffer"};
}

}  // namespace

UpdateRule update_rule_of(const OptimizerConfig& config, int64_t step) {
  return std::visit([step](const auto& optimizer) { return rule_of(optimizer, step); }, config);
}

std::vector<const char*> moments_of(const OptimizerConfig& config) {
  return std::visit([](const auto& optimizer) { return moments(optimizer); }, config);
}

}  // namespace zerorun
