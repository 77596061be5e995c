#include <algorithm>
#include <optional>

#include "base/error.h"
#include "convert/deepspeed_contents.h"

namespace zerorun::convert {
namespace {

// The states of one group, by name. Each has the partitions of all ranks.
using GroupStates = std::map<std::string, PartitionedState>;

void append(GroupStates& states, const std::string& name, SourceTensorPtr source) {
  PartitionedState& state = states[name];
  state.name = name;
  state.by_rank.push_back(std::move(source));
}

// Returns the number of padding elements after each parameter at stages 1 and 2. zero_to_fp32.py of DeepSpeed
// 0.19 skips them too.
std::vector<int64_t> paddings_of(const std::optional<PickledField>& paddings, size_t group,
                                 size_t parameters) {
  if (!paddings) return std::vector<int64_t>(parameters, 0);
  const PickledField field = paddings->item(group);
  std::vector<int64_t> counts = field.integers();
  if (counts.size() != parameters || std::ranges::any_of(counts, [](int64_t count) { return count < 0; }))
    throw UserError(field.place + ": expected " + std::to_string(parameters) + " numbers from 0 up");
  return counts;
}

class PartitionsReader {
 public:
  explicit PartitionsReader(DeepSpeedContents& contents)
      : contents_(contents), states_(contents.groups.size()) {
    for (const auto& path : contents.folder.optimizer_files) files_.push_back(contents.open(path));
  }

  void read() && {
    const PickledField first = state_dict_of(*files_.front());
    check(first);
    const bool by_rank = contents_.result.stage == 3;
    const char* const weights = by_rank ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    const char* const base = by_rank ? "optimizer_state_dict" : "base_optimizer_state";
    if (!first.find(weights))
      throw UserError(first.place + ": \"" + weights + "\" is missing: expected a checkpoint of ZeRO stage " +
                      std::to_string(contents_.result.stage) + " (DeepSpeed 0.9 or newer)");
    if (!first.need(base).value.is(PickleKind::dict))
      throw UserError(first.place + "." + base +
                      ": an elastic checkpoint, which is not supported: save with \"elastic_checkpoint\": "
                      "false, or convert it with ds_to_universal");
    if (contents_.result.facts.precision == "fp16")
      add_loss_scale(first.need("loss_scaler"), contents_.numbers());
    add_groups(first.need(base).need("param_groups"), contents_.numbers());
    for (TorchFile* file : files_) {
      const PickledField saved = state_dict_of(*file);
      read_rank(file, saved.need(weights), NumberedFields(saved.need(base).need("state")));
    }
    const auto paddings = first.find("param_alignment_paddings");
    for (size_t group = 0; group < contents_.groups.size(); ++group)
      add_group(contents_.groups[group], states_[group],
                paddings_of(paddings, group, contents_.groups[group].parameters.size()));
    contents_.numbers()["steps.optimizer"] = steps_.value_or(contents_.result.facts.generation);
  }

 private:
  static PickledField state_dict_of(const TorchFile& file) {
    return root_of(file).need("optimizer_state_dict");
  }

  // For bf16 with fp32 gradients at stage 1, DeepSpeed uses a different optimizer, which does not save
  // "zero_stage". Its files are recognised by "single_partition_of_fp32_groups".
  void check(const PickledField& first) {
    const bool is_bf16_optimizer = !first.find("zero_stage") && first.find("single_partition_of_fp32_groups");
    contents_.result.stage = is_bf16_optimizer ? 1 : zero_stage_of(first);
    const int world_size = contents_.result.facts.world_size;
    if (static_cast<size_t>(world_size) != files_.size())
      throw UserError(contents_.folder.path.string() + ": " + std::to_string(files_.size()) +
                      " files of optimizer states, expected one for each of the " +
                      std::to_string(world_size) + " ranks: copy the files of all nodes into one folder");
  }

  // Reads one rank's file. `weights` has the rank's partitions of fp32 weights, and `moments` the optimizer's
  // states; both by group.
  void read_rank(TorchFile* file, const PickledField& weights, const NumberedFields& moments) {
    for (const auto& [field, count] :
         {std::pair(&weights.place, weights.value.size()), std::pair(&moments.place(), moments.size())}) {
      if (count != states_.size())
        throw UserError(*field + ": " + std::to_string(count) + " groups, param_shapes has " +
                        std::to_string(states_.size()));
    }
    for (size_t group = 0; group < states_.size(); ++group) {
      append(states_[group], contents_.state_of_weights(), tensor_of(file, weights.item(group)));
      for (const auto& [name, value] : moments.at(group).entries()) {
        if (name == "step") {
          steps_ = std::max(steps_.value_or(0), step_of(file, value));
        } else if (file->tensor(value.value, value.place)) {
          append(states_[group], name, tensor_of(file, value));
        }
      }
    }
  }

  void add_group(const ShapeGroup& group, const GroupStates& states, const std::vector<int64_t>& paddings) {
    for (const auto& [name, state] : states) check_ranks(state, files_.size(), group.place);
    const bool by_rank = contents_.result.stage == 3;
    int64_t begin = 0;
    for (size_t at = 0; at < group.parameters.size(); ++at) {
      const auto& [name, shape] = group.parameters[at];
      const int64_t numel = numel_of(shape, group.place);
      int64_t taken = by_rank ? share_of(numel, files_.size()) : numel;
      int64_t end = 0;
      if (__builtin_add_overflow(taken, by_rank ? 0 : paddings[at], &taken) ||
          __builtin_add_overflow(begin, taken, &end))
        throw UserError(group.place + ": damaged: more than 2^63 elements");
      for (const auto& [state_name, state] : states) {
        SourceState found;
        found.dtype = state.by_rank.front()->tensor.dtype;
        found.pieces = by_rank ? pieces_by_rank(state, begin, numel) : pieces_of_flat(state, begin, numel);
        contents_.result.parameters.at(name).states[state_name] = std::move(found);
      }
      begin = end;
    }
    for (const auto& [name, state] : states) {
      if (by_rank) {
        check_ranks_are_used(state, begin);
      } else {
        check_flat_is_used(state, begin);
      }
    }
  }

  DeepSpeedContents& contents_;
  std::vector<TorchFile*> files_;    // by rank
  std::vector<GroupStates> states_;  // by group
  std::optional<int64_t> steps_;     // absent if no state has a step (SGD)
};

}  // namespace

void read_partitions(DeepSpeedContents& contents) {
  PartitionsReader(contents).read();
}

}  // namespace zerorun::convert
