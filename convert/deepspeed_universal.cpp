#include <algorithm>
#include <optional>

#include "base/error.h"
#include "convert/deepspeed_contents.h"

namespace zerorun::convert {
namespace {

// Adds each state that has a file in `folder`. Returns the optimizer's step, if the folder has one.
std::optional<int64_t> read_states(DeepSpeedContents& contents, const std::filesystem::path& folder,
                                   SourceParameter& parameter) {
  std::optional<int64_t> steps;
  for (const std::string& file_name : contents.files->list(folder).value_or(std::vector<std::string>())) {
    if (!file_name.ends_with(".pt")) continue;
    const std::string state = file_name.substr(0, file_name.size() - 3);
    TorchFile* file = contents.open(folder / file_name);
    if (state == "step") {
      steps = std::max(steps.value_or(0), step_of(file, root_of(*file)));
      continue;
    }
    const SourceTensorPtr source = tensor_of(file, root_of(*file).need("param"));
    add_state(parameter, state == "fp32" ? contents.state_of_weights() : state, source,
              file->path().string());
  }
  return steps;
}

}  // namespace

void read_universal(DeepSpeedContents& contents) {
  const auto zero = contents.folder.path / "zero";
  const PickledField facts = root_of(*contents.open(zero / "optimizer_state.pt"));
  contents.result.stage = zero_stage_of(facts);
  add_groups(facts.need("param_groups"), contents.numbers());
  if (contents.result.facts.precision == "fp16")
    add_loss_scale(facts.need("loss_scaler"), contents.numbers());
  std::optional<int64_t> steps;
  for (auto& [name, parameter] : contents.result.parameters) {
    const auto folder = contents.folder.parameter_folders.find(name);
    if (folder == contents.folder.parameter_folders.end())
      throw UserError(zero.string() + ": no folder of the parameter " + name);
    steps = std::max(steps, read_states(contents, folder->second, parameter));
    if (!parameter.states.contains(contents.state_of_weights()))
      throw UserError(folder->second.string() + ": fp32.pt is missing");
  }
  contents.numbers()["steps.optimizer"] = steps.value_or(contents.result.facts.generation);
}

}  // namespace zerorun::convert
