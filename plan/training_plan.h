// Plans a training from the program that would run it: what it will take of memory and of the network, before
// it runs and on any machine (docs/plan.md). Any thread, one plan at a time.
//
//   const int plan = zerorun::find_plan(argc, argv);  // program ... --plan --world 16 --device cuda
//   if (plan < argc) {
//     const auto request = zerorun::parse_plan_request(argc - plan, argv + plan);
//     const auto forward = [&](zerorun::Engine&) {
//       return model->loss(at::empty({8, 128}, at::dtype(at::kLong).device(at::kMeta)));
//     };
//     if (request) print_plan(zerorun::plan_training(*model, "ds_config.json", *request, forward));
//   }
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <functional>
#include <string>

#include "engine/engine.h"
#include "engine/model.h"
#include "engine/options.h"
#include "plan/report.h"
#include "plan/request.h"

namespace zerorun {

/// The program's forward of one micro-step: returns the loss. Its inputs must be on LibTorch's meta device
/// (c10::kMeta), of the sizes that they have in a run. `engine`: that of the plan, for autocast(),
/// cast_input() and config(). Called several times.
using PlannedForward = std::function<at::Tensor(Engine& engine)>;

/// What a plan runs.
struct PlannedTraining {
  /// On any device; its values are not used, and it is as before afterwards. It must not belong to an engine.
  Model model;
  /// Empty: each parameter is used once in forward, in the model's order, and but for the first one once in
  /// backward.
  PlannedForward forward = {};
  /// Of these mesh, tensor_plan, parameter_groups, attention_heads, bucket_numel, arguments and hidden_size
  /// have an effect. An optimizer or a schedule of the program is refused. If the mesh has pipeline stages,
  /// windows of micro-batches like `pipeline->example` are planned in place of `forward`: its tensors may be
  /// on any device, and are not read.
  InitializeOptions options = {};
  /// If set, called with each config that is read, for what the program adds to it: an optimizer.
  std::function<void(Config&)> complete = {};
};

/// Plans `model`, whose values are not used: build it under a DeferredInit, or on LibTorch's meta device, if
/// it is large. Afterwards it is as it was. With `forward` activations are known too, if it can run without
/// values. Throws UserError if the config, the options or the model cannot be used.
PlanReport plan_training(torch::nn::Module& model, const std::filesystem::path& ds_config,
                         const PlanRequest& request, PlannedForward forward = {},
                         InitializeOptions options = {});
/// The same for any model and a config's text, which messages name `origin`.
PlanReport plan_training(PlannedTraining training, const std::string& config, const std::string& origin,
                         const PlanRequest& request);

}  // namespace zerorun
