#include "engine/optimizer_groups.h"

#include <algorithm>
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

std::vector<int64_t> rows_of_heads(const MuonConfig& config, const InitializeOptions& options,
                                   const Buckets& buckets) {
  std::vector<int64_t> rows(buckets.parameters().size());
  if (!config.per_head) return rows;
  if (options.attention_heads.empty() && !options.pipeline) {
    throw UserError(
        "per_head_muon is true, and no matrix of the model has attention heads: give their numbers "
        "(InitializeOptions::attention_heads; in Python they follow from model.config), or remove the key");
  }
  for (const auto& [name, heads] : options.attention_heads) {
    const auto found = std::ranges::find(buckets.parameters(), name, &NamedParameter::name);
    const std::string key = "attention_heads: \"" + name + "\" ";
    if (found == buckets.parameters().end()) {
      if (options.pipeline) continue;  // another stage has it
      throw UserError(key + "is no parameter of the model");
    }
    const at::Tensor& matrix = found->tensor;
    if (matrix.dim() != 2 || found->group == kFrozen || group_for_muon(0, name, 2) != 0)
      throw UserError(key + "is no matrix that Muon updates: leave it out");
    if (heads < 1 || matrix.size(0) % heads != 0) {
      throw UserError(key + "has " + std::to_string(matrix.size(0)) + " rows, which do not divide into " +
                      std::to_string(heads) + " heads");
    }
    rows[found - buckets.parameters().begin()] = matrix.size(0) / heads;
  }
  return rows;
}

}  // namespace zerorun
