#include "pipeline/layers.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"

namespace zerorun {
namespace {

std::string count_of(size_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::vector<int> cut_before(const std::vector<PipelineLayer>& layers, const std::vector<std::string>& firsts,
                            int stages) {
  if (static_cast<int>(firsts.size()) + 1 != stages) {
    throw UserError("PipelineCut::firsts has " + count_of(firsts.size(), "name") + ", and the mesh has " +
                    count_of(stages, "pipeline stage") +
                    ": give the first layers of all stages but the first");
  }
  std::vector<int> begins{0};
  for (const std::string& name : firsts) {
    const auto found =
        std::ranges::find(layers.begin() + begins.back() + 1, layers.end(), name, &PipelineLayer::name);
    if (found == layers.end()) {
      throw UserError("PipelineCut::firsts: there is no layer " + name + " behind layer " +
                      layers[begins.back()].name + ": give names of layers, in their order");
    }
    begins.push_back(static_cast<int>(found - layers.begin()));
  }
  begins.push_back(static_cast<int>(layers.size()));
  return begins;
}

std::vector<double> bytes_of(const std::vector<PipelineLayer>& layers) {
  std::vector<double> bytes;
  for (const PipelineLayer& layer : layers) {
    double sum = 0;
    for (const at::Tensor& tensor : layer.tensors) sum += static_cast<double>(tensor.nbytes());
    bytes.push_back(sum);
  }
  return bytes;
}

void check_seconds(const std::vector<double>& seconds, size_t layers) {
  const bool fits = seconds.size() == layers &&
                    std::ranges::all_of(seconds, [](double one) { return std::isfinite(one) && one >= 0; });
  if (fits) return;
  throw UserError("PipelineCut::seconds: expected " + count_of(layers, "number") +
                  " of at least 0, one for each layer, found " + count_of(seconds.size(), "number") +
                  (seconds.size() == layers ? ", some of them negative or not finite" : "") +
                  ": measure_layers() gives them");
}

void check_layers(const std::vector<PipelineLayer>& layers) {
  std::set<std::string> names;
  for (const PipelineLayer& layer : layers) {
    if (layer.name.empty() || !layer.forward)
      throw UserError("Pipeline::layers: each layer has a name and a function `forward`");
    if (!names.insert(layer.name).second)
      throw UserError("Pipeline::layers: two layers have the name " + layer.name);
  }
}

}  // namespace

std::vector<int> divide_layers(const Pipeline& pipeline, int stages) {
  const std::vector<PipelineLayer>& layers = pipeline.layers;
  check_layers(layers);
  if (!pipeline.loss) throw UserError("Pipeline::loss is not set: train_batch() needs it");
  if (static_cast<int>(layers.size()) < stages) {
    throw UserError("the pipeline has " + count_of(layers.size(), "layer") + ", and the mesh has " +
                    count_of(stages, "pipeline stage") +
                    ": each stage needs a layer; use fewer stages, or divide layers");
  }
  switch (pipeline.cut->by) {
    case PipelineCut::By::bytes:
      return cut_by_cost(bytes_of(layers), stages);
    case PipelineCut::By::seconds:
      check_seconds(pipeline.cut->seconds, layers.size());
      return cut_by_cost(pipeline.cut->seconds, stages);
    case PipelineCut::By::names:
      return cut_before(layers, pipeline.cut->firsts, stages);
    case PipelineCut::By::number:
      break;
  }
  return cut_by_number(static_cast<int>(layers.size()), stages);
}

}  // namespace zerorun
