#include "engine/recomputed_modules.h"

#include "activations/recomputation.h"
#include "base/error.h"
#include "engine/engine_state.h"

namespace zerorun {

RecomputedModules::RecomputedModules(Engine& engine) : state_(engine.state_) {
  ZR_CHECK(state_->recomputation, "there is no budget of recomputation");
}

bool RecomputedModules::chooses(const std::string& name) const {
  return state_->recomputation->chooses(name, /*is_inside=*/false);
}

bool RecomputedModules::measures() const {
  return state_->recomputation->measures();
}

void RecomputedModules::add(const std::string& name, int64_t inputs, int64_t activations,
                            double seconds) const {
  state_->recomputation->add(
      name, {.inputs = inputs, .in_file = 0, .activations = activations, .seconds = seconds});
}

}  // namespace zerorun
