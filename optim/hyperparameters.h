// Access to the learning rate, betas and weight decay of an optimizer config of any type. A config has betas
// if its struct has members beta1 and beta2. Pure functions; any thread.
#pragma once

#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "config/config_types.h"

namespace zerorun {

template <typename Optimizer>
concept HasBetas = requires(Optimizer optimizer) {
  optimizer.beta1 + optimizer.beta2;
};

inline double lr_of(const OptimizerConfig& config) {
  return std::visit([](const auto& optimizer) { return optimizer.lr; }, config);
}
inline void set_lr(OptimizerConfig& config, double lr) {
  std::visit([lr](auto& optimizer) { optimizer.lr = lr; }, config);
}

/// Absent if the optimizer has no betas.
inline std::optional<std::pair<double, double>> betas_of(const OptimizerConfig& config) {
  return std::visit(
      [](const auto& optimizer) -> std::optional<std::pair<double, double>> {
        if constexpr (HasBetas<decltype(optimizer)>) {
          return std::pair(optimizer.beta1, optimizer.beta2);
        } else {
          return std::nullopt;
        }
      },
      config);
}
/// The optimizer must have betas.
inline void set_betas(OptimizerConfig& config, std::pair<double, double> betas) {
  std::visit(
      [&betas](auto& optimizer) {
        if constexpr (HasBetas<decltype(optimizer)>) {
          std::tie(optimizer.beta1, optimizer.beta2) = betas;
        } else {
          ZR_CHECK(false, "betas for an optimizer that has none");
        }
      },
      config);
}

inline void set_weight_decay(OptimizerConfig& config, double weight_decay) {
  std::visit(
      [weight_decay](auto& optimizer) {
        optimizer.weight_decay = weight_decay;
        if constexpr (requires { optimizer.adamw; }) optimizer.adamw.weight_decay = weight_decay;
      },
      config);
}

}  // namespace zerorun
