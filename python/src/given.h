// What Python gives to an engine, or to a plan of one. Plain values.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/mesh_sizes.h"
#include "config/config.h"
#include "engine/model.h"
#include "engine/options.h"
#include "pipeline/layers.h"
#include "python/src/python_optimizer.h"
#include "tensor_parallel/plan.h"

namespace zerorun::python {

// Pattern, word, unit, blocks, transposed.
using PlanEntry = std::tuple<std::string, std::string, int64_t, int64_t, bool>;

struct Given {
  Model::NamedTensors parameters;
  Model::NamedTensors buffers;
  Model::NamedTensors unsaved_buffers;
  std::string config;     // the text of a ds_config.json
  std::string origin;     // the config's name in messages
  std::string optimizer;  // a ds_config.json with only the program's optimizer; empty: the program has none
  std::shared_ptr<PythonOptimizer> python_optimizer;  // the program's, which has no such description
  std::vector<ParameterGroup> groups;
  Arguments arguments;
  bool has_schedule = false;  // the program passes a schedule
  std::string output_folder;
  std::optional<std::tuple<int, int, int, int>>
      mesh;  // sizes of data (0: what the others leave), tensor, pipeline; the number of replicas
  std::vector<PlanEntry> tensor_plan;
  std::optional<Pipeline> pipeline;
  // What a transformers model says of itself: buffers for data_types.keep_in_fp32_modules, under bf16 and
  // fp16 or only under fp16, and attention heads for per_head_muon.
  std::vector<std::string> fp32_buffers, fp32_buffers_under_fp16;
  std::map<std::string, int64_t> attention_heads;
};

std::optional<MeshSizes> sizes_of(const Given& given);
TensorPlan tensor_plan_of(const Given& given);
/// Adds to a config what the program gives: its optimizer, and buffers that stay fp32. Throws UserError if
/// both name an optimizer.
void complete(const Given& given, Config& config);

}  // namespace zerorun::python
