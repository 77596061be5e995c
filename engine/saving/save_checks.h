// Checks before anything is saved or loaded, so that an error names what is wrong. Used by the engine's
// thread.
#pragma once

#include <filesystem>
#include <string>

#include "engine/engine_state.h"

namespace zerorun {

/// Whether a tensor of a safetensors file can have the name: it is UTF-8, and not the metadata's.
bool can_name_tensor(const std::string& name);

/// Throws UserError if `directory` is empty, or if it or `name` in it has a 0 byte, where the system would
/// cut the path off. `call`: "save_checkpoint".
void check_path(const std::filesystem::path& directory, const std::string& name, const std::string& call);

/// Throws UserError if a parameter or buffer has a name or dtype that safetensors files cannot have.
void check_names_and_dtypes(const EngineState& state, const std::string& call);

/// Throws UserError if a learning rate or another number that a checkpoint keeps is infinite or NaN.
void check_numbers(EngineState& state, const std::string& call);

}  // namespace zerorun
