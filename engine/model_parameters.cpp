#include "engine/model_parameters.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/name_pattern.h"
#include "device/dtypes.h"
#include "optim/whole_parameter_optimizers.h"
#include "zero/deferred_init.h"
#include "zero/interception.h"
#include "zero/stage.h"

namespace zerorun {
namespace {

using GroupOf = std::unordered_map<c10::TensorImpl*, int>;

void add_group(GroupOf& groups, const std::vector<at::Tensor>& parameters, int group) {
  for (const at::Tensor& parameter : parameters) {
    auto [entry, fresh] = groups.try_emplace(parameter.unsafeGetTensorImpl(), group);
    if (!fresh) {
      throw UserError("a parameter is in parameter group " + std::to_string(entry->second) +
                      " and again in group " + std::to_string(group) + ": put it in one");
    }
  }
}

// An optimizer without parameters has groups too, which are empty.
bool has_groups(const InitializeOptions& options) {
  return options.optimizer || !options.parameter_groups.empty();
}

GroupOf read_groups(const InitializeOptions& options) {
  GroupOf groups;
  int group = 0;
  if (options.optimizer) {
    for (const auto& each : options.optimizer->param_groups()) add_group(groups, each.params(), group++);
  } else {
    for (const auto& each : options.parameter_groups) add_group(groups, each.parameters, group++);
  }
  return groups;
}

bool is_convertible(const at::Tensor& tensor, Dtype training) {
  return tensor.scalar_type() == scalar_type(training) ||
         (training != Dtype::fp32 && tensor.is_floating_point());
}

void check_trainable(const std::string& name, const at::Tensor& tensor, Dtype training) {
  const std::string parameter = "parameter " + name;
  if (!is_convertible(tensor, training)) {
    throw UserError(parameter + " has dtype " + c10::toString(tensor.scalar_type()) +
                    (training == Dtype::fp32 ? ", but the config trains in fp32: enable bf16 or fp16 in the "
                                               "config, or convert the parameter to fp32"
                                             : ": expected a real floating-point type, to be converted to " +
                                                   std::string(name_of(training))));
  }
  if (tensor.layout() != at::kStrided)
    throw UserError(parameter + " is a sparse tensor: make it dense with .to_dense() before initialize()");
  if (!tensor.is_non_overlapping_and_dense()) {
    throw UserError(parameter +
                    " is not a dense tensor without gaps: make it so with .contiguous() before initialize()");
  }
  if (!tensor.is_leaf())
    throw UserError(parameter + " is not a leaf: register the tensor that owns the values");
}

// Whether the memory was taken away with the engine that owned it. A tensor of an engine that lives, and a
// deferred one, have owners.
bool has_no_values(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_meta() || tensor.nbytes() == 0 || owner_of(tensor))
    return false;
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() == nullptr;
}

void check_usable(const std::string& name, const at::Tensor& tensor) {
  if (tensor.is_inference()) {
    throw UserError("parameter " + name +
                    " was made in inference mode, where autograd and the engine cannot follow it: build the "
                    "model outside of c10::InferenceMode (Python: torch.inference_mode())");
  }
  if (has_no_values(tensor)) {
    throw UserError(
        "parameter " + name +
        " has no values: its memory is gone, as with an engine of ZeRO stage 3 that was destroyed. "
        "Make the new engine while that one lives, or give the parameter memory "
        "(parameter.set_data(); Python: parameter.data = ...) and load a checkpoint");
  }
}

// A parameter outside of buckets is read and written as raw memory, which another engine's buckets forbid.
void check_without_engine(const std::string& name, const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !owner_of(tensor) || is_deferred(tensor)) return;
  throw UserError("frozen parameter " + name +
                  " is in the memory of another engine, which trains it: destroy that engine first");
}

bool can_be_partitioned(const at::Tensor& frozen, const Config& config) {
  return is_convertible(frozen, config.precision.training) && frozen.layout() == at::kStrided &&
         frozen.is_non_overlapping_and_dense() && frozen.is_leaf() &&
         frozen.numel() > config.zero.param_persistence_threshold;
}

// Chooses the dtypes of tensors outside of buckets: frozen parameters get the dtype of trained parameters, as
// in DeepSpeed.
void choose_conversions(std::vector<NamedTensor>& others, const PrecisionConfig& precision) {
  for (NamedTensor& other : others) {
    if (!other.tensor.is_floating_point()) continue;
    if (other.is_buffer) {
      const bool stays_fp32 = precision.training != Dtype::fp32 && precision.fp32_buffers &&
                              std::ranges::any_of(*precision.fp32_buffers, [&](const std::string& pattern) {
                                return matches_anywhere(pattern, other.name);
                              });
      other.dtype = stays_fp32 ? std::optional(Dtype::fp32) : precision.buffers;
    } else if (precision.training != Dtype::fp32) {
      other.dtype = precision.training;
    }
  }
}

void check_shared(const NamedTensor& other) {
  if (other.tensor.layout() != at::kStrided) {
    throw UserError(
        other.name +
        " is a sparse tensor: make it dense with .to_dense() before initialize(), or keep it in a "
        "member that is not registered");
  }
  if (other.tensor.numel() == 0) return;
  for (int64_t dim = 0; dim < other.tensor.dim(); ++dim) {
    if (other.tensor.stride(dim) != 0 || other.tensor.size(dim) < 2) continue;
    throw UserError(other.name +
                    " is an expanded tensor, whose elements share memory: register a .contiguous() one");
  }
}

// Throws UserError if a parameter shares memory with another tensor, because moving it into a bucket ends the
// sharing.
void check_no_shared_memory(const ModelParameters& model) {
  struct Extent {
    const void* owner;  // set if the storage may have no memory; then begin and end are offsets in bytes
    uintptr_t begin;
    uintptr_t end;
    const std::string* name;
    bool moves;  // the tensor moves into a bucket
  };
  std::vector<Extent> extents;
  auto add = [&](const std::string& name, const at::Tensor& tensor, bool moves) {
    if (tensor.numel() == 0 || tensor.layout() != at::kStrided) return;
    int64_t last = 0;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
    const void* owner = tensor.is_meta() ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl())
                                         : owner_of(tensor);
    const auto begin = owner ? static_cast<uintptr_t>(tensor.storage_offset() * tensor.element_size())
                             : reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    extents.push_back({owner, begin, begin + (last + 1) * tensor.element_size(), &name, moves});
  };
  for (const auto* bucketed : {&model.trained, &model.frozen}) {
    for (const NamedParameter& parameter : *bucketed) add(parameter.name, parameter.tensor, true);
  }
  for (const auto* others : {&model.unbucketed, &model.unsaved}) {
    for (const NamedTensor& other : *others) add(other.name, other.tensor, false);
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.owner, a.begin) < std::tie(b.owner, b.begin);
  });
  const Extent* reaching = nullptr;        // the extent with the furthest end so far
  const Extent* reaching_moved = nullptr;  // the extent with the furthest end among those that move
  for (const Extent& extent : extents) {
    const Extent* overlapped = extent.moves ? reaching : reaching_moved;
    if (overlapped && extent.owner == overlapped->owner && extent.begin < overlapped->end) {
      throw UserError(*overlapped->name + " and " + *extent.name +
                      " share memory without being one tensor: to tie parameters, register the same tensor "
                      "in both places; a buffer needs memory of its own");
    }
    auto reaches_further = [&](const Extent* other) {
      return !other || extent.owner != other->owner || extent.end > other->end;
    };
    if (reaches_further(reaching)) reaching = &extent;
    if (extent.moves && reaches_further(reaching_moved)) reaching_moved = &extent;
  }
}

int own_group(int given, const std::string& name, const at::Tensor& tensor, const Config& config) {
  if (!config.optimizer || !std::holds_alternative<MuonConfig>(*config.optimizer)) return given;
  return group_for_muon(given, name, tensor.dim());
}

}  // namespace

ModelParameters collect_parameters(const Model& model, const Config& config, const InitializeOptions& options,
                                   const std::function<bool(const at::Tensor&)>& may_lack_group) {
  if (c10::InferenceMode::is_enabled()) {
    throw UserError(
        "initialize() in inference mode, in which tensors cannot be trained: call it outside of "
        "c10::InferenceMode (Python: torch.inference_mode())");
  }
  const GroupOf groups = read_groups(options);
  size_t found_in_groups = 0;
  ModelParameters result;

  std::unordered_set<c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : model.parameters) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    check_usable(name, tensor);
    const auto group = groups.find(tensor.unsafeGetTensorImpl());
    if (group != groups.end()) ++found_in_groups;
    if (!tensor.requires_grad() || options.computes_only) {
      if (policy_of(config.zero.stage).partition_parameters && can_be_partitioned(tensor, config)) {
        result.frozen.push_back({name, tensor, kFrozen});
      } else {
        check_without_engine(name, tensor);
        result.unbucketed.push_back({.name = name, .tensor = tensor});
      }
      continue;
    }
    const bool has_group = group != groups.end();
    if (has_groups(options) && !has_group && !(may_lack_group && may_lack_group(tensor))) {
      throw UserError("parameter " + name +
                      " requires grad but is in no parameter group: add it to one, or freeze it with "
                      "requires_grad_(false)");
    }
    check_trainable(name, tensor, config.precision.training);
    const int given = has_group ? group->second : 0;
    result.trained.push_back({name, tensor, own_group(given, name, tensor, config)});
  }
  if (found_in_groups != groups.size()) {
    throw UserError("the parameter groups hold " + std::to_string(groups.size() - found_in_groups) +
                    " parameter(s) that the model does not: pass the model's own parameters()");
  }
  if (result.trained.empty() && !options.computes_only)
    throw UserError("the model has no parameter that requires grad: nothing to train");
  for (const auto& [name, tensor] : model.buffers)
    result.unbucketed.push_back({.name = name, .tensor = tensor, .is_buffer = true});
  for (const auto& [name, tensor] : model.unsaved_buffers)
    result.unsaved.push_back({.name = name, .tensor = tensor, .is_buffer = true});
  for (auto* others : {&result.unbucketed, &result.unsaved}) {
    choose_conversions(*others, config.precision);
    for (const NamedTensor& other : *others) check_shared(other);
  }
  check_no_shared_memory(result);
  return result;
}

}  // namespace zerorun
