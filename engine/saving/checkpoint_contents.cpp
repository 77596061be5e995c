#include "engine/saving/checkpoint_contents.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "device/dtypes.h"

namespace zerorun {
namespace {

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {{"F32", at::kFloat},
                                                              {"BF16", at::kBFloat16},
                                                              {"F16", at::kHalf},
                                                              {"F64", at::kDouble},
                                                              {"I64", at::kLong},
                                                              {"I32", at::kInt},
                                                              {"I16", at::kShort},
                                                              {"I8", at::kChar},
                                                              {"U8", at::kByte},
                                                              {"U64", at::kUInt64},
                                                              {"U32", at::kUInt32},
                                                              {"U16", at::kUInt16},
                                                              {"C64", at::kComplexFloat},
                                                              {"F8_E4M3", at::kFloat8_e4m3fn},
                                                              {"F8_E5M2", at::kFloat8_e5m2},
                                                              {"BOOL", at::kBool}};

}  // namespace

const char* spelled(at::ScalarType dtype) {
  for (const auto& [name, named] : kDtypes) {
    if (named == dtype) return name;
  }
  throw UserError(std::string("dtype ") + c10::toString(dtype) + " has no name in safetensors files");
}

at::ScalarType dtype_of(const std::string& spelled_as) {
  for (const auto& [name, named] : kDtypes) {
    if (spelled_as == name) return named;
  }
  throw UserError("dtype \"" + spelled_as + "\" is not known");
}

namespace {

std::string five_digits(int number) {
  const std::string digits = std::to_string(number);
  return std::string(5 - std::min<size_t>(5, digits.size()), '0') + digits;
}

constexpr const char* kBuffers = "buffers";
constexpr const char* kFrozenParameters = "frozen";  // those that ranks have in full

// "buffers.safetensors", and of pipeline stages behind the first "buffers-stage-00002.safetensors".
std::string name_of_stage_file(const char* what, const EngineState& state) {
  const int stage = state.stage ? state.mesh.coordinates().pipeline : 0;
  return what + (stage > 0 ? "-stage-" + five_digits(stage) : std::string()) + ".safetensors";
}

bool differs_among_tensor_ranks(Share share, StateKind kind) {
  return share == Share::split || (share == Share::summed && kind == StateKind::gradient);
}

checkpoint::SavedSplit saved_split(const Split& split) {
  checkpoint::SavedSplit saved{.dim = split.dim, .parts = {}};
  for (const std::vector<Range>& part : split.parts) {
    auto& intervals = saved.parts.emplace_back();
    for (const auto& [begin, numel] : part) intervals.push_back({begin, numel});
  }
  return saved;
}

checkpoint::SavedParameter saved_parameter(const NamedTensor& other) {
  return {.shape = other.tensor.sizes().vec(),
          .strides = at::empty(other.tensor.sizes(), at::kByte).strides().vec(),
          .trained = false};
}

// Adds the further names of tied parameters, which occur under each of their names in the model.
void add_aliases(std::map<std::string, checkpoint::SavedParameter>& saved, const Model& model) {
  std::unordered_map<const c10::TensorImpl*, std::string> first_names;
  for (const auto& [name, tensor] : model.parameters) {
    const auto [first, is_new] = first_names.emplace(tensor.unsafeGetTensorImpl(), name);
    if (!is_new) saved[first->second].aliases.push_back(name);
  }
}

}  // namespace

std::string name_of_file(int bucket, int rank) {
  return "bucket-" + five_digits(bucket) + "-rank-" + five_digits(rank) + ".safetensors";
}

std::string name_of_slot(int bucket, int rank) {
  return "bucket-" + five_digits(bucket) + "-rank-" + five_digits(rank) + "-offloaded.safetensors";
}

std::string name_of_value_slot(int bucket, int rank) {
  return "bucket-" + five_digits(bucket) + "-rank-" + five_digits(rank) + "-offloaded-values.safetensors";
}

std::string own_gradient_of(int rank) {
  return std::string(kGradient) + " of rank " + std::to_string(rank);
}

checkpoint::SavedWindow saved_window(const EngineState& state) {
  return {.micro_steps = state.progress.counts().micro,
          .accumulation_steps = state.config.batch.gradient_accumulation_steps,
          .is_summed = state.reducer.reduces_every_backward(),
          .dtype = spelled(scalar_type(state.reducer.gradient_dtype())),
          .communication = name_of(state.config.precision.communication),
          .factor = state.reducer.factor(),
          .loss_scale = state.loss_scale()};
}

void open_slices(EngineState& state, bool opens, const std::string& label) {
  if (state.residency) state.residency->finish_iteration();
  if (opens) {
    state.mesh.data().barrier(label)->wait();  // from here on no rank reads parameters
    for (int bucket = 0; bucket < state.store.count(); ++bucket) state.residency->start_update(bucket);
  }
  state.buckets.masters().follow_writes();
}

void close_slices(EngineState& state, bool gathers) {
  for (int bucket = 0; bucket < state.store.count(); ++bucket)
    state.residency->finish_update(bucket, gathers);
}

int saved_part(const EngineState& state, int parameter, StateKind kind) {
  const Share share = state.buckets.parameters()[parameter].share;
  return differs_among_tensor_ranks(share, kind) ? state.mesh.coordinates().tensor : checkpoint::kWhole;
}

bool writes(const EngineState& state, int bucket, StateKind kind) {
  if (state.mesh.replica() > 0) return false;
  if (is_tied_behind(state.buckets.parameters()[state.store.layout(bucket).parameters.front()])) return false;
  return state.mesh.coordinates().tensor == 0 ||
         differs_among_tensor_ranks(state.store.layout(bucket).share, kind);
}

std::optional<MeshSizes> saved_mesh(const EngineState& state) {
  if (!state.mesh.has_groups()) return std::nullopt;
  MeshSizes sizes = state.mesh.sizes();
  sizes.replicate = 1;  // states are those of one replica
  return sizes;
}

bool writes_others(const EngineState& state) {
  const MeshCoordinates& own = state.mesh.coordinates();
  return state.stage ? own.data == 0 && own.tensor == 0 : state.mesh.world().rank() == 0;
}

std::string name_of_buffers_file(const EngineState& state) {
  return name_of_stage_file(kBuffers, state);
}

std::string name_of_frozen_file(const EngineState& state) {
  return name_of_stage_file(kFrozenParameters, state);
}

bool is_buffers_file(const std::string& name) {
  return name.starts_with(kBuffers);
}

checkpoint::SavedParameter saved_parameter(const NamedParameter& parameter) {
  checkpoint::SavedParameter saved{.shape = parameter.tensor.sizes().vec(),
                                   .strides = parameter.tensor.strides().vec(),
                                   .trained = parameter.group != kFrozen,
                                   .group = parameter.group};
  if (!parameter.split) return saved;
  saved.shape[static_cast<size_t>(parameter.split->dim)] = parameter.split->whole;
  saved.strides = checkpoint::dense_strides(saved.shape, saved.strides);
  saved.split = saved_split(*parameter.split);
  return saved;
}

WholeModel whole_model(const ModelParameters& parameters, const Model& model) {
  WholeModel whole;
  for (const auto* bucketed : {&parameters.trained, &parameters.frozen}) {
    for (const NamedParameter& parameter : *bucketed)
      whole.tensors[parameter.name] = saved_parameter(parameter);
  }
  for (const NamedTensor& other : parameters.unbucketed) {
    whole.tensors[other.name] = saved_parameter(other);
    if (other.is_buffer) whole.buffers.insert(other.name);
  }
  add_aliases(whole.tensors, model);
  return whole;
}

std::map<std::string, checkpoint::SavedParameter> saved_parameters(const EngineState& state) {
  std::map<std::string, checkpoint::SavedParameter> saved = state.whole.tensors;
  std::map<std::string, checkpoint::SavedParameter> own;
  for (const NamedParameter& parameter : state.buckets.parameters())
    own[parameter.name] = saved_parameter(parameter);
  for (const NamedTensor& other : state.unbucketed) own[other.name] = saved_parameter(other);
  add_aliases(own, state.model);
  own.merge(saved);
  return own;
}

}  // namespace zerorun
