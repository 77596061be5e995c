#include "convert/deepspeed_checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/safetensors_dtype.h"
#include "checkpoint/state_header.h"
#include "convert/deepspeed_contents.h"

namespace zerorun::convert {
namespace {

constexpr const char* kValue = "value";

// Returns the dtype of the module's parameters. If the checkpoint has no ds_config, this dtype is assumed to
// be the precision of training.
std::string precision_of_module(DeepSpeedContents& contents) {
  const PickledField model = contents.model();
  const std::vector<std::string> buffers = model.need("buffer_names").texts();
  for (const auto& [name, value] : model.need("module").entries()) {
    if (std::ranges::find(buffers, name) != buffers.end()) continue;
    const auto dtype = training_dtype_named(tensor_of(contents.models.front(), value)->tensor.dtype);
    if (dtype) return name_of(*dtype);
  }
  throw UserError(model.place + "neither \"ds_config\" nor \"module\" shows the precision of training");
}

void read_shapes(DeepSpeedContents& contents) {
  const auto groups = contents.model().find("param_shapes");
  if (!groups) return;
  for (const PickledField& group : groups->items()) {
    ShapeGroup& shapes = contents.groups.emplace_back();
    shapes.place = group.place;
    for (const auto& [name, shape] : group.entries()) {
      shapes.parameters.emplace_back(name, shape.integers());
      contents.add_parameter(name, shapes.parameters.back().second, shape.place);
    }
  }
}

// At stage 3 each rank's model file has that rank's part of every frozen parameter.
void add_frozen_fragments(DeepSpeedContents& contents, const PickledField& shapes) {
  std::map<std::string, PartitionedState> fragments;
  for (TorchFile* file : contents.models) {
    for (const auto& [name, fragment] : root_of(*file).need("frozen_param_fragments").entries()) {
      PartitionedState& state = fragments[name];
      state.name = name;
      state.by_rank.push_back(tensor_of(file, fragment));
    }
  }
  for (const auto& [name, shape] : shapes.entries()) {
    const PartitionedState& state = fragments[name];
    check_ranks(state, contents.models.size(), shape.place);
    SourceParameter& parameter = contents.add_parameter(name, shape.integers(), shape.place);
    parameter.facts.trained = false;
    SourceState& values = parameter.states[kValue];
    values.dtype = state.by_rank.front()->tensor.dtype;
    values.pieces = pieces_by_rank(state, 0, numel_of(parameter.facts.shape, shape.place));
  }
}

// Adds buffers and frozen parameters. The model file's `module` has the buffers. At stages 1 and 2 it also
// has all parameters. There, the parameters that are neither trained nor aliases are the frozen ones. (The
// file's frozen_param_shapes would name them, but stage 1 does not write it.) At stage 0 read_stage0() has
// already added all parameters. At stage 3 `module` has no parameters.
void read_untrained(DeepSpeedContents& contents) {
  const PickledField model = contents.model();
  const int stage = contents.result.stage;
  std::set<std::string> buffers;
  if (const auto names = model.find("buffer_names")) {
    for (const std::string& name : names->texts()) buffers.insert(name);
  }
  std::set<std::string> aliases;
  if (const auto shared = model.find("shared_params")) {
    for (const auto& [alias, name] : shared->entries()) aliases.insert(alias);
  }
  if (const auto module = model.find("module")) {
    for (const auto& [name, value] : module->entries()) {
      if ((stage == 0 || stage == 3) && !buffers.contains(name)) continue;
      if (contents.result.parameters.contains(name) || aliases.contains(name)) continue;
      const SourceTensorPtr source = tensor_of(contents.models.front(), value);
      SourceParameter& parameter = contents.add_parameter(name, source->tensor.shape, value.place);
      parameter.facts.strides = source->tensor.strides;
      parameter.facts.trained = false;
      add_state(parameter, kValue, source, value.place);
    }
  }
  const auto frozen = model.find("frozen_param_shapes");
  if (frozen && stage == 3) add_frozen_fragments(contents, *frozen);
}

// Refuses checkpoints with experts that DeepSpeed itself created (AutoEP), because DeepSpeed shards these
// experts over different groups of ranks than the other parameters.
void refuse_experts(const PickledField& model) {
  for (const char* const key : {"ds_autoep_layers", "autoep_layers"}) {
    if (model.find(key))
      throw UserError(model.place + "\"" + key +
                      "\": written with expert parallelism, which is not supported");
  }
}

void read_aliases(DeepSpeedContents& contents) {
  const auto shared = contents.model().find("shared_params");
  if (!shared) return;
  for (const auto& [alias, name] : shared->entries()) {
    const auto parameter = contents.result.parameters.find(name.text());
    if (parameter == contents.result.parameters.end())
      throw UserError(name.place + ": tied to " + name.text() + ", which the checkpoint does not have");
    parameter->second.facts.aliases.push_back(alias);
  }
}

}  // namespace

DeepSpeedCheckpoint read_deepspeed_checkpoint(checkpoint::FileSystem& files,
                                              const std::filesystem::path& folder) {
  DeepSpeedContents contents;
  contents.files = &files;
  contents.folder = find_deepspeed_files(files, folder);
  for (const auto& path : contents.folder.model_files) contents.models.push_back(contents.open(path));
  contents.result.folder = contents.folder.path;
  contents.result.tag = contents.folder.tag;
  contents.result.facts = read_deepspeed_facts(contents.model());
  refuse_experts(contents.model());
  std::string& precision = contents.result.facts.precision;
  if (precision.empty()) precision = precision_of_module(contents);
  read_shapes(contents);
  if (contents.folder.is_universal) {
    read_universal(contents);
  } else if (contents.folder.optimizer_files.empty()) {
    if (!contents.groups.empty()) {
      throw UserError(
          contents.folder.path.string() +
          ": no *_optim_states.pt, which ZeRO stages 1 to 3 write for each rank beside the model's "
          "file: copy those of all nodes into the folder");
    }
    read_stage0(contents);
  } else {
    if (contents.groups.empty())
      throw UserError(contents.model().place +
                      "\"param_shapes\" is missing: expected DeepSpeed 0.9 or newer");
    read_partitions(contents);
  }
  if (contents.result.stage == 3 && !contents.folder.is_universal &&
      contents.models.size() != static_cast<size_t>(contents.result.facts.world_size))
    throw UserError(contents.folder.path.string() + ": " + std::to_string(contents.models.size()) +
                    " files of model states, expected one for each of the " +
                    std::to_string(contents.result.facts.world_size) + " ranks");
  read_untrained(contents);
  read_aliases(contents);
  return std::move(contents.result);
}

void read(const SourceState& state, int64_t begin, std::span<std::byte> into) {
  const int64_t size = checkpoint::element_bytes(state.dtype);
  int64_t first = 0;
  for (const SourcePiece& piece : state.pieces) {
    const int64_t skipped = std::max<int64_t>(0, begin - first);
    first += piece.numel;
    if (skipped >= piece.numel || into.empty()) continue;
    const int64_t count = std::min(piece.numel - skipped, static_cast<int64_t>(into.size()) / size);
    piece.source->file->read(piece.source->tensor, piece.begin + skipped,
                             into.first(static_cast<size_t>(count * size)));
    into = into.subspan(static_cast<size_t>(count * size));
    begin += count;
  }
  ZR_CHECK(into.empty(), "elements beyond the end of a state");
}

}  // namespace zerorun::convert
