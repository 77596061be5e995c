#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "convert/deepspeed_contents.h"

namespace zerorun::convert {
namespace {

// Adds all parameters, including frozen ones, and returns their names in the module's order. If several names
// refer to the same tensor, the later names become aliases.
std::vector<std::string> read_weights(DeepSpeedContents& contents) {
  const PickledField model = contents.model();
  const std::vector<std::string> buffers = model.need("buffer_names").texts();
  const std::set<std::string> is_buffer(buffers.begin(), buffers.end());
  std::vector<std::string> names;
  std::map<std::pair<std::string, int64_t>, std::string> first_names;  // by storage and offset
  for (const auto& [name, value] : model.need("module").entries()) {
    if (is_buffer.contains(name)) continue;
    const SourceTensorPtr source = tensor_of(contents.models.front(), value);
    const auto [first, is_new] =
        first_names.emplace(std::pair(source->tensor.entry, source->tensor.offset), name);
    if (!is_new && source->tensor.numel > 0) {
      contents.result.parameters.at(first->second).facts.aliases.push_back(name);
      continue;
    }
    SourceParameter& parameter = contents.add_parameter(name, source->tensor.shape, value.place);
    parameter.facts.strides = source->tensor.strides;
    add_state(parameter, contents.state_of_weights(), source, value.place);
    names.push_back(name);
  }
  return names;
}

// The tensors and the step in one entry of the optimizer's state.
struct Moments {
  std::map<std::string, SourceTensorPtr> tensors;
  std::optional<int64_t> steps;  // absent for SGD
  std::string place;
};

std::vector<Moments> moments_of(TorchFile* file, const PickledField& state) {
  const NumberedFields by_index(state);
  std::vector<Moments> all(state.value.size() / 2);
  for (size_t index = 0; index < all.size(); ++index) {
    all[index].place = by_index.at(index).place;
    for (const auto& [name, value] : by_index.at(index).entries()) {
      if (name == "step") {
        all[index].steps = step_of(file, value);
      } else if (file->tensor(value.value, value.place)) {
        all[index].tensors.emplace(name, tensor_of(file, value));
      }
    }
  }
  return all;
}

bool fits(const Moments& moments, const SourceParameter& parameter) {
  return std::ranges::all_of(moments.tensors, [&](const auto& tensor) {
    return tensor.second->tensor.shape == parameter.facts.shape;
  });
}

// Assigns `moments` to `names`. The optimizer numbers the trained parameters in the module's order and does
// not name them. `names` may also have frozen parameters, so trained ones are identified by shape. Returns
// the index in `names` for each of `moments`, or nullopt if several assignments fit. Throws UserError if none
// fits.
std::optional<std::vector<size_t>> match(const std::vector<Moments>& moments,
                                         const std::vector<std::string>& names,
                                         const DeepSpeedCheckpoint& checkpoint, const std::string& place) {
  auto fits_name = [&](size_t index, size_t at) {
    return fits(moments[index], checkpoint.parameters.at(names[at]));
  };
  std::vector<size_t> first;
  for (size_t at = 0; at < names.size() && first.size() < moments.size(); ++at) {
    if (fits_name(first.size(), at)) first.push_back(at);
  }
  if (first.size() != moments.size())
    throw UserError((moments.empty() ? place : moments[first.size()].place) +
                    ": no parameter of the module has this shape at this position");
  // The assignment is unique if each moment's earliest possible match is also its latest possible match.
  size_t left = moments.size();
  for (size_t at = names.size(); at-- > 0 && left > 0;) {
    if (!fits_name(left - 1, at)) continue;
    --left;
    if (first[left] != at) return std::nullopt;
  }
  return first;
}

void read_moments(DeepSpeedContents& contents, const PickledField& state,
                  const std::vector<std::string>& names) {
  const std::vector<Moments> moments = moments_of(contents.models.front(), state);
  const auto matches = match(moments, names, contents.result, state.place);
  std::optional<int64_t> steps;
  for (const Moments& one : moments) steps = std::max(steps, one.steps);
  contents.numbers()["steps.optimizer"] = steps.value_or(contents.result.facts.generation);
  if (!matches) {
    contents.leave_out("the optimizer's moments: it has those of " + std::to_string(moments.size()) +
                       " parameters, the module has " + std::to_string(names.size()) +
                       ", and at stage 0 DeepSpeed does not say which are frozen");
    return;
  }
  for (const std::string& name : names) contents.result.parameters.at(name).facts.trained = false;
  for (size_t index = 0; index < moments.size(); ++index) {
    SourceParameter& parameter = contents.result.parameters.at(names[(*matches)[index]]);
    parameter.facts.trained = true;
    for (const auto& [name, source] : moments[index].tensors)
      add_state(parameter, name, source, moments[index].place);
  }
}

}  // namespace

void read_stage0(DeepSpeedContents& contents) {
  contents.result.stage = 0;
  const PickledField model = contents.model();
  if (contents.result.facts.precision != "fp32")
    throw UserError(
        model.place +
        "stage 0 with fp16 or bf16 is not supported: resume with DeepSpeed at stage 1 and save again");
  const std::vector<std::string> names = read_weights(contents);
  const auto optimizer = model.find("optimizer");
  if (!optimizer) {
    contents.leave_out("the optimizer's state: the model's file has none");
    return;
  }
  if (add_groups(optimizer->need("param_groups"), contents.numbers()) > 1) {
    contents.leave_out(
        "the optimizer's moments: at stage 0 DeepSpeed does not say which parameter is in which group");
    return;
  }
  read_moments(contents, optimizer->need("state"), names);
}

}  // namespace zerorun::convert
