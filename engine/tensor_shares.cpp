#include "engine/tensor_shares.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "device/dtypes.h"
#include "engine/state_placement.h"
#include "zero/deferred_init.h"
#include "zero/interception.h"

namespace zerorun {
namespace {

// All names of each parameter: a tied one has several.
using NamesOf = std::unordered_map<c10::TensorImpl*, std::vector<std::string>>;

NamesOf names_of(const Model& model) {
  NamesOf names;
  for (const auto& [name, tensor] : model.parameters) names[tensor.unsafeGetTensorImpl()].push_back(name);
  return names;
}

bool cuts_alike(const PlannedShare& one, const PlannedShare& other) {
  auto begins = [](const Split& split) {
    std::vector<std::pair<int64_t, int64_t>> all;
    for (const auto& part : split.parts) {
      for (const Range& range : part) all.emplace_back(range.begin, range.numel);
    }
    return all;
  };
  return one.share == other.share && one.split.dim == other.split.dim &&
         begins(one.split) == begins(other.split);
}

// A tied parameter has one share, which all names that the plan has must agree on. Of an embedding that is
// also the output layer, the output layer's word says whether results are gathered.
PlannedShare share_of(const TensorPlan& plan, const std::vector<std::string>& names, at::IntArrayRef sizes,
                      int ranks) {
  PlannedShare share;
  std::string decided_by;
  for (const std::string& name : names) {
    const TensorPlanEntry* entry = find_entry(plan, name);
    if (!entry) continue;
    PlannedShare found = share_of(*entry, name, sizes, ranks);
    if (!decided_by.empty() && !cuts_alike(found, share)) {
      throw UserError("the tensor plan splits the tied parameter " + decided_by + " and " + name +
                      " differently: give both the same dimension, unit and blocks");
    }
    const bool is_embedding = entry->style == TensorStyle::embedding_rowwise;
    if (decided_by.empty() || !is_embedding) share = std::move(found);
    decided_by = name;
  }
  return share;
}

void check_plan_fits(const TensorPlan& plan, const Model& model) {
  for (const TensorPlanEntry& entry : plan) {
    const bool found = std::ranges::any_of(model.parameters, [&](const auto& parameter) {
      return find_entry({entry}, parameter.first) != nullptr;
    });
    if (found) continue;
    throw UserError(
        "the tensor plan's entry " + entry.pattern +
        " names no module with parameters and no parameter of the model: patterns are full names, "
        "in which * stands for one part between dots");
  }
}

// Its values would be gathered by another engine, for which each data group needs all of its ranks.
void check_no_other_engine(const Model& model) {
  for (const auto& [name, tensor] : model.parameters) {
    if (tensor.layout() != at::kStrided || !owner_of(tensor) || is_deferred(tensor)) continue;
    throw UserError("parameter " + name +
                    " is in the memory of another engine, from which a tensor plan cannot take it: destroy "
                    "that engine first");
  }
}

// A frozen parameter that stays outside of buckets when it is whole.
void check_can_be_split(const NamedTensor& frozen, Dtype training) {
  const at::Tensor& tensor = frozen.tensor;
  const bool converts = tensor.scalar_type() == scalar_type(training) ||
                        (training != Dtype::fp32 && tensor.is_floating_point());
  if (converts && tensor.is_non_overlapping_and_dense() && tensor.is_leaf()) return;
  throw UserError("frozen parameter " + frozen.name + ", which the tensor plan splits, is " +
                  std::string(c10::toString(tensor.scalar_type())) +
                  (converts ? " with gaps: make it .contiguous()"
                            : ": only parameters of the training's dtype can be split") +
                  ", or leave it whole");
}

// An optimizer that looks at whole parameters would take a part for one.
void check_works_on_parts(const Config& config, const InitializeOptions& options) {
  if (!config.optimizer || options.computes_only) return;
  const bool is_lamb = std::holds_alternative<LambConfig>(*config.optimizer);
  if (!is_lamb && !std::holds_alternative<MuonConfig>(*config.optimizer)) return;
  throw UserError(std::string(name_of(*config.optimizer)) +
                  " computes with whole parameters, and the tensor plan splits them among tensor ranks: use "
                  "an element-wise optimizer such as AdamW, or no tensor plan");
}

// A module's bias is added to what its weight gives.
void check_biases_fit(const ModelParameters& parameters) {
  std::map<std::string, std::shared_ptr<const Split>> weights;  // by the name of the module, with a dot
  for (const auto* bucketed : {&parameters.trained, &parameters.frozen}) {
    for (const NamedParameter& parameter : *bucketed) {
      if (parameter.split && parameter.name.ends_with(".weight"))
        weights[parameter.name.substr(0, parameter.name.size() - 6)] = parameter.split;
    }
  }
  for (const auto* bucketed : {&parameters.trained, &parameters.frozen}) {
    for (const NamedParameter& parameter : *bucketed) {
      if (!parameter.split || !parameter.name.ends_with(".bias")) continue;
      const auto weight = weights.find(parameter.name.substr(0, parameter.name.size() - 4));
      if (weight == weights.end() || weight->second->cuts_like(*parameter.split)) continue;
      throw UserError("the tensor plan splits parameter " + parameter.name + " and " + weight->first +
                      "weight differently: give both the same unit and blocks");
    }
  }
}

void check_sums_on_device(const ModelParameters& parameters, const Config& config, const Mesh& mesh) {
  const bool sums = std::ranges::any_of(
      parameters.trained, [](const NamedParameter& each) { return each.share == Share::summed; });
  if (sums && updates_on_host(config, mesh.data().device())) {
    throw UserError(
        "the tensor plan has parameters that are replicated_with_grad_allreduce, whose gradients are summed "
        "on the GPU, and offload_optimizer updates on the host: use one of the two");
  }
}

}  // namespace

void split_parameters(ModelParameters& parameters, const Model& model, const Config& config,
                      const InitializeOptions& options, const Mesh& mesh) {
  const int ranks = mesh.sizes().tensor;
  if (ranks == 1) return;
  if (!options.tensor_plan) {
    throw UserError("the mesh has " + std::to_string(ranks) +
                    " tensor ranks (zerorun.mesh, tensor_parallel.autotp_size), and no plan says how they "
                    "split the model: set InitializeOptions::tensor_plan (Python: "
                    "initialize(tensor_plan=...)); docs/tensor_parallel.md has examples");
  }
  const TensorPlan& plan = *options.tensor_plan;
  if (plan.empty()) return;
  check_plan_fits(plan, model);
  check_no_other_engine(model);
  check_works_on_parts(config, options);
  const NamesOf names = names_of(model);
  auto planned = [&](const at::Tensor& tensor) {
    return share_of(plan, names.at(tensor.unsafeGetTensorImpl()), tensor.sizes(), ranks);
  };
  auto assign = [](NamedParameter& parameter, PlannedShare share) {
    parameter.share = share.share;
    if (share.share == Share::split) parameter.split = std::make_shared<Split>(std::move(share.split));
  };
  for (auto* bucketed : {&parameters.trained, &parameters.frozen}) {
    for (NamedParameter& parameter : *bucketed) assign(parameter, planned(parameter.tensor));
  }
  std::erase_if(parameters.unbucketed, [&](const NamedTensor& other) {
    if (other.is_buffer) return false;
    PlannedShare share = planned(other.tensor);
    if (share.share != Share::split) return false;
    check_can_be_split(other, config.precision.training);
    parameters.frozen.push_back({other.name, other.tensor, kFrozen});
    assign(parameters.frozen.back(), std::move(share));
    return true;
  });
  check_biases_fit(parameters);
  check_sums_on_device(parameters, config, mesh);
}

bool has_tensor_plan(const InitializeOptions& options, const Mesh& mesh) {
  return mesh.sizes().tensor > 1 && options.tensor_plan && !options.tensor_plan->empty();
}

bool has_splits(const ModelParameters& parameters) {
  auto any = [](const std::vector<NamedParameter>& all) {
    return std::ranges::any_of(all, [](const NamedParameter& each) { return each.share != Share::whole; });
  };
  return any(parameters.trained) || any(parameters.frozen);
}

}  // namespace zerorun
