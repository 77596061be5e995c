// Checks before anything is saved, so that an error names what cannot be saved. Used by the engine's thread.
#pragma once

#include <string>

#include "engine/engine_state.h"

namespace zerorun {

/// Whether a tensor of a safetensors file can have the name: it is UTF-8, and not the metadata's.
bool can_name_tensor(const std::string& name);

/// Throws UserError if a parameter or buffer has a name or dtype that safetensors files cannot have.
void check_names_and_dtypes(const EngineState& state, const std::string& call);

/// Throws UserError if a learning rate or another number that a checkpoint keeps is infinite or NaN.
void check_numbers(EngineState& state, const std::string& call);

}  // namespace zerorun
