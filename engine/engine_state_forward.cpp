// What the config says of forwards: autocast, and which of the blocks are recomputed in backward.
#include <algorithm>
#include <string>

#include "activations/marked_modules.h"
#include "activations/recomputation.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine_state.h"

namespace zerorun {
namespace {

// Micro-batches between their forward and their backward on this rank.
int64_t micro_batches_in_flight(const EngineState& state) {
  if (!state.stage) return 1;
  const int64_t stages = state.mesh.sizes().pipeline, stage = state.mesh.coordinates().pipeline;
  return std::min(stages - stage, state.config.batch.gradient_accumulation_steps);
}

}  // namespace

AutocastState EngineState::autocast_state() const {
  AutocastState state;
  if (config.precision.autocast) state.enable(mesh.world().device().location().type(), at::kBFloat16);
  return state;
}

void EngineState::start_recomputation(bool has_pipeline) {
  RecomputeConfig chosen = config.recompute;
  if (config.pipeline.recomputed_group > 0 && has_pipeline) {
    chosen.every = 1;
    chosen.patterns.clear();
    chosen.budget.reset();
  }
  const bool recomputes = chosen.every > 0 || !chosen.patterns.empty() || chosen.budget;
  if (!recomputes || computes_only || !model.module) return;
  const bool splits = has_tensor_plan && mesh.sizes().tensor > 1;
  recomputation = std::make_shared<Recomputation>(
      chosen,
      InputHome{.tensor_ranks = chosen.partitioned && splits ? &mesh.along(MeshAxis::tensor) : nullptr,
                .on_host = chosen.on_host,
                .device = mesh.world().device().location()});
  marked_modules = std::make_unique<MarkedModules>(*model.module, recomputation);
  for (const std::string& pattern : chosen.patterns) {
    if (has_pipeline || marked_modules->has(pattern)) continue;
    throw UserError("zerorun.recompute.patterns: \"" + pattern +
                    "\" names no module of the model; * stands for one part of a name, as in \"h.*.mlp\"");
  }
  if (mesh.world().rank() != 0) return;
  if (chosen.partitioned && !splits)
    log_info("activation_checkpointing.partition_activations has no effect without tensor ranks");
  if (chosen.on_host && !mesh.data().device().streams().asynchronous())
    log_info(
        "activation_checkpointing.cpu_checkpointing has no effect: activations are in host memory already");
}

void EngineState::spend_recomputation_budget() {
  if (!recomputation || !recomputation->is_undecided()) return;
  const std::string decision =
      recomputation->decide(mesh.world(), mesh.coordinates().pipeline, micro_batches_in_flight(*this));
  if (mesh.world().rank() == 0) log_info(decision);
}

}  // namespace zerorun
