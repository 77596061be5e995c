// Pipelines from Python: the list of layers that initialize() takes, and windows of micro-batches.
//
// [Note: layers of a Python module] The engine's list has the name and the tensors of each layer. Python
// computes all layers of a stage in one call, because it may recompute several of them together. So the first
// layer of each stage calls Python, and the others pass on what it returns. Python keeps the inputs and
// labels of micro-batches, which may have any structure, and takes them in the order of the forwards.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/check.h"
#include "pipeline/cut.h"
#include "pipeline/layers.h"
#include "python/src/engine_binding.h"
#include "python/src/python_function.h"

namespace zerorun::python {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT(google-build-using-namespace): names of arguments

// `layers`: names and tensors. `firsts`: the names of the first layers of all stages but the first.
Pipeline make_pipeline(std::vector<std::pair<std::string, Tensors>> layers, std::vector<std::string> firsts,
                       py::object forward, py::object loss) {
  const PythonFunction of_stage(std::move(forward));
  const PythonFunction of_loss(std::move(loss));
  Pipeline pipeline;
  for (auto& [name, tensors] : layers) {
    const bool is_first = pipeline.layers.empty() || std::ranges::find(firsts, name) != firsts.end();
    PipelineLayer layer{.name = std::move(name), .tensors = std::move(tensors), .forward = {}};
    if (is_first) {
      layer.forward = [of_stage](const Tensors& inputs) { return of_stage.call<Tensors>(inputs); };
    } else {
      layer.forward = [](const Tensors& outputs) { return outputs; };
    }
    pipeline.layers.push_back(std::move(layer));
  }
  pipeline.loss = [of_loss](const Tensors& outputs, const Tensors& labels) {
    return of_loss.call<at::Tensor>(outputs, labels);
  };
  pipeline.cut = PipelineCut{.by = PipelineCut::By::names, .seconds = {}, .firsts = std::move(firsts)};
  return pipeline;
}

// Likewise for a plan, which calls each layer by itself (`forwards`), and has the tensors of one micro-batch.
Pipeline planned_pipeline(std::vector<std::pair<std::string, Tensors>> layers,
                          std::vector<std::string> firsts, std::vector<py::object> forwards, py::object loss,
                          Tensors inputs, Tensors labels) {
  Pipeline pipeline = make_pipeline(std::move(layers), std::move(firsts), py::none(), std::move(loss));
  for (size_t layer = 0; layer < forwards.size(); ++layer) {
    const PythonFunction forward(std::move(forwards[layer]));
    pipeline.layers[layer].forward = [forward](const Tensors& given) { return forward.call<Tensors>(given); };
  }
  pipeline.example = MicroBatch{.inputs = std::move(inputs), .labels = std::move(labels)};
  return pipeline;
}

// How many pipeline stages the config names, 0 if none.
int pipeline_stages(const std::string& config, const std::string& origin) {
  return config::named_ranks(config::check_config(config, origin).settings).pipeline.value_or(0);
}

// How many layers the config has recomputed together, 0 if it does not say.
int64_t recomputed_group(const std::string& config, const std::string& origin) {
  const config::Settings settings = config::check_config(config, origin).settings;
  return settings.get<int64_t>("pipeline.activation_checkpoint_interval").value_or(0);
}

}  // namespace

void bind_pipeline(py::module_& module, EngineClass& engine) {
  py::class_<Pipeline>(module, "Pipeline")
      .def(py::init(&make_pipeline), "layers"_a, "firsts"_a, "forward"_a, "loss"_a);
  module.def("planned_pipeline", &planned_pipeline);
  module.def("cut_by_cost",
             [](const std::vector<double>& costs, int stages) { return cut_by_cost(costs, stages); });
  module.def("cut_by_number", &cut_by_number);
  module.def("pipeline_stages", &pipeline_stages);
  module.def("recomputed_group", &recomputed_group);
  engine
      .def(
          "train_batch",
          [](CoreEngine& core, size_t micro_batches) {
            return core.get().train_batch(std::vector<MicroBatch>(micro_batches));
          },
          NoGil())
      .def(
          "eval_batch",
          [](CoreEngine& core, size_t micro_batches) {
            return core.get().eval_batch(std::vector<MicroBatch>(micro_batches));
          },
          NoGil());
}

}  // namespace zerorun::python
