#include "convert/deepspeed_checkpoint.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/state_header.h"
#include "convert/deepspeed_folder.h"
#include "convert/pickle_fields.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

constexpr const char* kValue = "value";
constexpr const char* kMaster = "master";

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;)
    strides[dim - 1] = strides[dim] * std::max<int64_t>(1, shape[dim]);
  return strides;
}

int64_t numel_of(const std::vector<int64_t>& shape, const std::string& place) {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel))
      throw UserError(place + ": damaged: a shape of more than 2^63 elements");
  }
  return numel;
}

// A parameter group (stage 3: a part of one), as `param_shapes` lists it.
struct ShapeGroup {
  std::vector<std::pair<std::string, std::vector<int64_t>>> parameters;
  std::string place;
};

// The optimizer's states of one group: tensors by name, one for each rank.
using GroupStates = std::map<std::string, PartitionedState>;

class Reader {
 public:
  Reader(FileSystem& files, const fs::path& folder)
      : files_(files), folder_(find_deepspeed_files(files, folder)) {}

  DeepSpeedCheckpoint read() && {
    for (const fs::path& path : folder_.model_files) models_.push_back(open(path));
    result_.tag = folder_.tag;
    result_.facts = read_deepspeed_facts(model());
    read_shapes();
    if (folder_.is_universal) {
      read_universal();
    } else if (folder_.optimizer_files.empty()) {
      read_stage0();
    } else {
      for (const fs::path& path : folder_.optimizer_files) optimizers_.push_back(open(path));
      read_partitions();
    }
    read_module();
    read_aliases();
    return std::move(result_);
  }

 private:
  TorchFile* open(const fs::path& path) {
    result_.files.push_back(std::make_unique<TorchFile>(files_, path));
    return result_.files.back().get();
  }
  static PickledField root_of(const TorchFile& file) { return {file.path().string() + ": ", file.root()}; }
  PickledField model() const { return root_of(*models_.front()); }
  static PickledField optimizer_of(const TorchFile& file) {
    return root_of(file).need("optimizer_state_dict");
  }
  RestartValues& numbers() { return result_.facts.numbers; }
  void left_out(const std::string& what) { result_.facts.left_out.push_back(what); }
  bool is_fp32() const { return result_.facts.precision == "fp32"; }
  const char* state_of_weights() const { return is_fp32() ? kValue : kMaster; }

  static SourceTensorPtr tensor_of(TorchFile* file, const PickledField& field) {
    const auto tensor = file->tensor(field.value, field.place);
    if (!tensor) throw UserError(field.place + ": expected a tensor");
    return std::make_shared<const SourceTensor>(SourceTensor{file, *tensor});
  }

  void read_shapes() {
    const auto groups = model().find("param_shapes");
    if (!groups) return;
    for (const PickledField& group : groups->items()) {
      ShapeGroup& shapes = groups_.emplace_back();
      shapes.place = group.place;
      for (const auto& [name, shape] : group.entries()) {
        shapes.parameters.emplace_back(name, shape.integers());
        add_parameter(name, shapes.parameters.back().second, shape.place);
      }
    }
  }

  SourceParameter& add_parameter(const std::string& name, const std::vector<int64_t>& shape,
                                 const std::string& place) {
    numel_of(shape, place);
    SourceParameter parameter;
    parameter.facts.shape = shape;
    parameter.facts.strides = contiguous_strides(shape);
    const auto [added, is_new] = result_.parameters.emplace(name, std::move(parameter));
    if (!is_new) throw UserError(place + ": the parameter appears twice");
    return added->second;
  }

  static void add_state(SourceParameter& parameter, const std::string& state, std::vector<SourcePiece> pieces,
                        const std::string& dtype) {
    parameter.states[state] = {dtype, std::move(pieces)};
  }

  static std::vector<SourcePiece> whole(const SourceTensorPtr& source) {
    return {{source, 0, source->tensor.numel}};
  }

  // Stage 0: the model's file has everything. The optimizer counts parameters and does not name them.
  void read_stage0() {
    result_.stage = 0;
    const PickledField model = this->model();
    if (!is_fp32())
      throw UserError(
          model.place +
          "stage 0 with fp16 or bf16 is not supported: resume with DeepSpeed at stage 1 and save again");
    std::vector<std::string> names;
    std::set<std::string> others;
    for (const std::string& buffer : model.need("buffer_names").texts()) others.insert(buffer);
    if (const auto frozen = model.find("frozen_param_shapes")) {
      for (const auto& [name, shape] : frozen->entries()) others.insert(name);
    }
    std::map<std::pair<std::string, int64_t>, std::string> first_names;  // by storage and offset
    for (const auto& [name, value] : model.need("module").entries()) {
      if (others.contains(name)) continue;
      const SourceTensorPtr source = tensor_of(models_.front(), value);
      const auto [first, is_new] =
          first_names.emplace(std::pair(source->tensor.entry, source->tensor.offset), name);
      if (!is_new && source->tensor.numel > 0) {
        result_.parameters.at(first->second).facts.aliases.push_back(name);
        continue;
      }
      SourceParameter& parameter = add_parameter(name, source->tensor.shape, value.place);
      parameter.facts.strides = source->tensor.strides;
      add_state(parameter, kValue, whole(source), source->tensor.dtype);
      names.push_back(name);
    }
    const auto optimizer = model.find("optimizer");
    if (!optimizer) {
      left_out("the optimizer's state: the model's file has none");
      return;
    }
    if (add_groups(optimizer->need("param_groups"), numbers()) > 1) {
      left_out(
          "the optimizer's moments: at stage 0 DeepSpeed does not say which parameter is in which group");
      return;
    }
    const auto state = optimizer->need("state");
    if (state.value.size() / 2 != names.size())
      throw UserError(state.place + ": " + std::to_string(state.value.size() / 2) +
                      " parameters, the module has " + std::to_string(names.size()));
    const NumberedFields by_index = numbered(state);
    int64_t steps = 0;
    for (size_t index = 0; index < names.size(); ++index) {
      const PickledField& group = entry(by_index, state, index);
      SourceParameter& parameter = result_.parameters.at(names[index]);
      for (const auto& [name, value] : group.entries()) {
        if (name == "step") {
          steps = std::max(steps, step_of(models_.front(), value));
          continue;
        }
        if (!models_.front()->tensor(value.value, value.place)) continue;
        const SourceTensorPtr source = tensor_of(models_.front(), value);
        if (source->tensor.shape != parameter.facts.shape)
          throw UserError(value.place + ": the shape differs from " + names[index] +
                          "'s, the parameter in this position");
        add_state(parameter, name, whole(source), source->tensor.dtype);
      }
    }
    numbers()["steps.optimizer"] = steps;
  }

  using NumberedFields = std::map<int64_t, PickledField>;

  // The entries of a dict whose keys are integers.
  static NumberedFields numbered(const PickledField& dict) {
    NumberedFields fields;
    if (!dict.value.is(PickleKind::dict)) throw UserError(dict.place + ": expected a dict");
    for (size_t index = 0; index + 1 < dict.value.size(); index += 2) {
      const int64_t key = PickledField{dict.place, dict.value.item(index)}.integer();
      fields.insert_or_assign(
          key, PickledField{dict.place + "[" + std::to_string(key) + "]", dict.value.item(index + 1)});
    }
    return fields;
  }
  static const PickledField& entry(const NumberedFields& fields, const PickledField& dict, size_t key) {
    const auto found = fields.find(static_cast<int64_t>(key));
    if (found == fields.end()) throw UserError(dict.place + ": no entry " + std::to_string(key));
    return found->second;
  }

  // A number, or a tensor of one.
  static int64_t step_of(TorchFile* file, const PickledField& field) {
    const auto tensor = file->tensor(field.value, field.place);
    if (!tensor) return field.integer();
    if (tensor->numel != 1 || tensor->dtype != "F32")
      throw UserError(field.place + ": expected a number or a tensor of one float");
    float step = 0;
    file->read(*tensor, 0, std::as_writable_bytes(std::span(&step, 1)));
    return static_cast<int64_t>(step);
  }

  // Stages 1 to 3: each rank's optimizer file has its partitions.
  void read_partitions() {
    const PickledField first = optimizer_of(*optimizers_.front());
    result_.stage = static_cast<int>(first.need("zero_stage").integer());
    if (result_.stage < 1 || result_.stage > 3)
      throw UserError(first.place + ".zero_stage: " + std::to_string(result_.stage) + ", expected 1, 2 or 3");
    if (static_cast<size_t>(result_.facts.world_size) != optimizers_.size())
      throw UserError(folder_.path.string() + ": " + std::to_string(optimizers_.size()) +
                      " files of optimizer states, expected one for each of the " +
                      std::to_string(result_.facts.world_size) +
                      " ranks: copy the files of all nodes into one folder");
    if (result_.facts.precision == "fp16") add_loss_scale(first.need("loss_scaler"), numbers());
    const bool by_rank = result_.stage == 3;
    const char* const weights = by_rank ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    const char* const base = by_rank ? "optimizer_state_dict" : "base_optimizer_state";
    if (!first.find(weights))
      throw UserError(first.place + ": \"" + weights + "\" is missing: expected a checkpoint of ZeRO stage " +
                      std::to_string(result_.stage) + " (DeepSpeed 0.9 or newer)");
    add_groups(first.need(base).need("param_groups"), numbers());
    std::vector<GroupStates> states(groups_.size());
    int64_t steps = 0;
    for (TorchFile* file : optimizers_) {
      const PickledField saved = optimizer_of(*file);
      const PickledField partitions = saved.need(weights);
      const PickledField base_states = saved.need(base).need("state");
      const NumberedFields moments = numbered(base_states);
      for (size_t group = 0; group < groups_.size(); ++group) {
        append(states[group], state_of_weights(), tensor_of(file, partitions.item(group)));
        for (const auto& [name, value] : entry(moments, base_states, group).entries()) {
          if (name == "step") {
            steps = std::max(steps, step_of(file, value));
          } else if (file->tensor(value.value, value.place)) {
            append(states[group], name, tensor_of(file, value));
          }
        }
      }
    }
    const auto paddings = first.find("param_alignment_paddings");
    for (size_t group = 0; group < groups_.size(); ++group)
      add_group(groups_[group], states[group],
                paddings_of(paddings, group, groups_[group].parameters.size()));
    numbers()["steps.optimizer"] = steps;
  }

  static void append(GroupStates& states, const std::string& name, SourceTensorPtr source) {
    PartitionedState& state = states[name];
    state.name = name;
    state.by_rank.push_back(std::move(source));
  }

  void add_group(const ShapeGroup& group, const GroupStates& states, const std::vector<int64_t>& paddings) {
    for (const auto& [name, state] : states) {
      if (state.by_rank.size() != optimizers_.size())
        throw UserError(group.place + ": " + name + " is in the files of some ranks only");
      for (const SourceTensorPtr& source : state.by_rank) {
        if (source->tensor.dtype != state.by_rank.front()->tensor.dtype)
          throw UserError(source->file->path().string() + ": " + name + " has another dtype than on rank 0");
      }
    }
    int64_t begin = 0;
    for (size_t at = 0; at < group.parameters.size(); ++at) {
      const auto& [name, shape] = group.parameters[at];
      const int64_t numel = numel_of(shape, group.place);
      for (const auto& [state_name, state] : states) {
        add_state(
            result_.parameters.at(name), state_name,
            result_.stage == 3 ? pieces_by_rank(state, begin, numel) : pieces_of_flat(state, begin, numel),
            state.by_rank.front()->tensor.dtype);
      }
      const int64_t taken = result_.stage == 3 ? share_of(numel, optimizers_.size()) : numel + paddings[at];
      if (__builtin_add_overflow(begin, taken, &begin))
        throw UserError(group.place + ": damaged: more than 2^63 elements");
    }
  }

  // Stages 1 and 2: elements between a parameter and the next. zero_to_fp32.py of DeepSpeed 0.19 skips them.
  static std::vector<int64_t> paddings_of(const std::optional<PickledField>& paddings, size_t group,
                                          size_t parameters) {
    if (!paddings) return std::vector<int64_t>(parameters, 0);
    const PickledField field = paddings->item(group);
    std::vector<int64_t> counts = field.integers();
    if (counts.size() != parameters || std::ranges::any_of(counts, [](int64_t count) { return count < 0; }))
      throw UserError(field.place + ": expected " + std::to_string(parameters) + " numbers from 0 up");
    return counts;
  }

  void read_universal() {
    const TorchFile* common = open(folder_.path / "zero" / "optimizer_state.pt");
    const PickledField facts = root_of(*common);
    result_.stage = static_cast<int>(facts.need("zero_stage").integer());
    add_groups(facts.need("param_groups"), numbers());
    if (result_.facts.precision == "fp16") add_loss_scale(facts.need("loss_scaler"), numbers());
    int64_t steps = 0;
    for (auto& [name, parameter] : result_.parameters) {
      const auto folder = folder_.parameter_folders.find(name);
      if (folder == folder_.parameter_folders.end())
        throw UserError((folder_.path / "zero").string() + ": no folder of the parameter " + name);
      for (const std::string& file_name : files_.list(folder->second).value_or(std::vector<std::string>())) {
        if (!file_name.ends_with(".pt")) continue;
        const std::string state = file_name.substr(0, file_name.size() - 3);
        TorchFile* file = open(folder->second / file_name);
        if (state == "step") {
          steps = std::max(steps, step_of(file, root_of(*file)));
          continue;
        }
        const SourceTensorPtr source = tensor_of(file, root_of(*file).need("param"));
        if (source->tensor.shape != parameter.facts.shape)
          throw UserError(file->path().string() + ": the tensor has another shape than param_shapes says");
        add_state(parameter, state == "fp32" ? state_of_weights() : state, whole(source),
                  source->tensor.dtype);
      }
      if (!parameter.states.contains(state_of_weights()))
        throw UserError(folder->second.string() + ": fp32.pt is missing");
    }
    numbers()["steps.optimizer"] = steps;
  }

  // What is not trained: buffers, and frozen parameters.
  void read_module() {
    const PickledField model = this->model();
    const auto module = model.find("module");
    std::map<std::string, PickledField> values;
    if (module) {
      for (const auto& [name, value] : module->entries()) values.insert_or_assign(name, value);
    }
    auto add = [&](const std::string& name) -> SourceParameter* {
      const auto found = values.find(name);
      if (found == values.end() || result_.parameters.contains(name)) return nullptr;
      const SourceTensorPtr source = tensor_of(models_.front(), found->second);
      SourceParameter& parameter = add_parameter(name, source->tensor.shape, found->second.place);
      parameter.facts.strides = source->tensor.strides;
      parameter.facts.trained = false;
      add_state(parameter, kValue, whole(source), source->tensor.dtype);
      return &parameter;
    };
    if (const auto buffers = model.find("buffer_names")) {
      for (const std::string& name : buffers->texts()) add(name);
    }
    const auto frozen = model.find("frozen_param_shapes");
    if (!frozen) return;
    for (const auto& [name, shape] : frozen->entries()) {
      if (result_.stage == 3) {
        add_frozen_fragments(name, shape);
      } else if (!add(name)) {
        SourceParameter& parameter = add_parameter(name, shape.integers(), shape.place);
        parameter.facts.trained = false;
        parameter.facts.excluded = true;
      }
    }
  }

  // Stage 3: each rank's model file has its part of a frozen parameter.
  void add_frozen_fragments(const std::string& name, const PickledField& shape) {
    PartitionedState state{name, {}};
    for (TorchFile* file : models_)
      state.by_rank.push_back(tensor_of(file, root_of(*file).need("frozen_param_fragments").need(name)));
    SourceParameter& parameter = add_parameter(name, shape.integers(), shape.place);
    parameter.facts.trained = false;
    const int64_t numel = numel_of(parameter.facts.shape, shape.place);
    add_state(parameter, kValue, pieces_by_rank(state, 0, numel), state.by_rank.front()->tensor.dtype);
  }

  void read_aliases() {
    const auto shared = model().find("shared_params");
    if (!shared) return;
    for (const auto& [alias, name] : shared->entries()) {
      const auto parameter = result_.parameters.find(name.text());
      if (parameter == result_.parameters.end())
        throw UserError(name.place + ": tied to " + name.text() + ", which the checkpoint does not have");
      parameter->second.facts.aliases.push_back(alias);
    }
  }

  FileSystem& files_;
  DeepSpeedFolder folder_;
  std::vector<TorchFile*> models_;
  std::vector<TorchFile*> optimizers_;  // by rank
  std::vector<ShapeGroup> groups_;
  DeepSpeedCheckpoint result_;
};

}  // namespace

DeepSpeedCheckpoint read_deepspeed_checkpoint(FileSystem& files, const fs::path& folder) {
  return Reader(files, folder).read();
}

void read(const SourceState& state, int64_t begin, std::span<std::byte> into) {
  const int64_t size = element_bytes(state.dtype);
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

}  // namespace zerorun
