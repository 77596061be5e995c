// Replicas of a mesh (MeshSizes::replicate) have the same values, unless the program writes other ones on
// them. Used by the engine's thread.
#pragma once

#include <string>

#include "engine/engine_state.h"

namespace zerorun {

/// Compares checksums of this rank's slices with those of the first replica. A collective; throws UserError
/// on all ranks if they differ. Does nothing if there is one replica. `call`: for the message.
void check_replicas_agree(EngineState& state, const std::string& call);

}  // namespace zerorun
