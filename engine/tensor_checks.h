// Checks against silently wrong results of a tensor plan: what tensor ranks have whole must be the same on
// all of them. Collectives, used by the engine's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "engine/engine_state.h"

namespace zerorun {

/// Compares a loss over the tensor group. Throws UserError on all ranks of the group if the ranks' losses
/// differ by more than rounding. Does nothing once the first optimizer step is done. `call`:
/// "engine.backward".
void check_losses(const EngineState& state, const at::Tensor& loss, const std::string& call);

/// Compares the gradients of parameters that are not split, whose sums over data ranks are complete, over the
/// tensor group. Throws UserError on all ranks of the job if one differs by more than rounding: it names the
/// parameter and the word that would cure it. Returns false if gradients are not finite, which cannot be
/// compared.
bool check_whole_gradients(EngineState& state);

/// Compares the values of trained parameters that are not split, as far as they are in memory, over the
/// tensor group: ranks that were given other samples, or gradients, have drifted apart. Throws UserError on
/// all ranks of the job. `call`: "engine.save_checkpoint".
void check_whole_values(EngineState& state, const std::string& call);

}  // namespace zerorun
