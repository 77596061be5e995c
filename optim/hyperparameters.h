// What is common to the configs of optimizers: learning rate and betas, whichever type it is. Which of them
// have betas their structs say, and nothing else does. Pure functions; any thread.
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

/// Absent where the optimizer has none.
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
/// Of an optimizer that has them.
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

}  // namespace zerorun
