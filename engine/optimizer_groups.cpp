#include "engine/optimizer_groups.h"

#include <string>
#include <tuple>

#include "base/error.h"
#include "optim/hyperparameters.h"
#include "optim/whole_parameter_optimizers.h"

namespace zerorun {
namespace {

[[noreturn]] void refuse_hyperparameter(const std::string& name, const OptimizerConfig& config) {
  throw UserError("a parameter group has " + name + ", and the config's optimizer is " + name_of(config) +
                  ", which has none: leave them out");
}

template <typename Optimizer>
void override_by(const ParameterGroup& group, Optimizer& optimizer) {
  optimizer.lr = group.lr.value_or(optimizer.lr);
  optimizer.weight_decay = group.weight_decay.value_or(optimizer.weight_decay);
  if constexpr (requires { optimizer.adamw; }) {
    override_by(group, optimizer.adamw);
    return;
  }
  if constexpr (HasBetas<Optimizer>) {
    if (group.betas) std::tie(optimizer.beta1, optimizer.beta2) = *group.betas;
  } else if (group.betas) {
    refuse_hyperparameter("betas", optimizer);
  }
  if constexpr (requires { optimizer.eps; }) {
    optimizer.eps = group.eps.value_or(optimizer.eps);
  } else if (group.eps) {
    refuse_hyperparameter("eps", optimizer);
  }
}

}  // namespace

std::vector<OptimizerConfig> group_configs(const OptimizerConfig& base, const InitializeOptions& options) {
  std::vector<OptimizerConfig> groups;
  for (const ParameterGroup& group : options.parameter_groups) {
    std::visit([&group](auto& optimizer) { override_by(group, optimizer); }, groups.emplace_back(base));
  }
  if (groups.empty()) groups.push_back(base);
  return std::holds_alternative<MuonConfig>(base) ? split_for_muon(groups) : groups;
}

}  // namespace zerorun
