#include "tests/engine/parameter_model.h"

#include <algorithm>

#include "engine/saving/checkpoint_contents.h"

namespace zerorun::testing {
namespace {

struct Folder : torch::nn::Module {};

// The module that has the member `name`, as in "layers.0.weight", and the last part of the name.
std::pair<std::shared_ptr<torch::nn::Module>, std::string> place_of(std::shared_ptr<torch::nn::Module> module,
                                                                    std::string name) {
  for (size_t dot; (dot = name.find('.')) != std::string::npos; name.erase(0, dot + 1)) {
    const std::string part = name.substr(0, dot);
    const auto children = module->named_children();
    const auto* child = children.find(part);
    module = child ? *child : module->register_module(part, std::make_shared<Folder>());
  }
  return {module, name};
}

}  // namespace

ParameterModel::ParameterModel(const checkpoint::SavedState& saved, int tensor_ranks)
    : root(std::make_shared<Folder>()) {
  bool by_columns = false;
  for (const auto& [name, parameter] : saved.manifest().parameters) {
    const std::string dtype = saved.dtype_of(name, "value");
    const bool is_float = dtype.empty() || at::isFloatingType(dtype_of(dtype));
    const at::Tensor zeros =
        at::empty_strided(parameter.shape, parameter.strides, is_float ? at::kFloat : dtype_of(dtype))
            .zero_();
    const auto [module, own_name] = place_of(root, name);
    if (!is_float) {
      buffers[name] = module->register_buffer(own_name, zeros);
    } else {
      parameters[name] = module->register_parameter(own_name, zeros, parameter.trained);
      for (const std::string& alias : parameter.aliases) {
        const auto [other, alias_name] = place_of(root, alias);
        other->register_parameter(alias_name, parameters[name], parameter.trained);
      }
      const bool may_split = parameter.shape.size() == 2 && parameter.aliases.empty() &&
                             *std::ranges::min_element(parameter.shape) >= tensor_ranks;
      if (may_split) plan.push_back({name, by_columns ? TensorStyle::rowwise : TensorStyle::colwise});
      by_columns = by_columns != may_split;
    }
    pipeline.layers.push_back(
        {name, {is_float ? parameters[name] : buffers[name]}, [](const Tensors& inputs) { return inputs; }});
  }
  pipeline.cut = PipelineCut{.by = PipelineCut::By::number};
  pipeline.loss = [](const Tensors& outputs, const Tensors&) { return outputs.at(0).sum(); };
}

Engine ParameterModel::engine(const std::string& config, const MeshSizes& mesh,
                              std::shared_ptr<Communicator> communicator) {
  InitializeOptions options;
  options.pipeline = pipeline;
  return decoder_engine(*root, config, mesh, std::move(communicator), plan, options);
}

}  // namespace zerorun::testing
