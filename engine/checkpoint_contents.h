// What saving and loading have in common: how an engine's state is named in a checkpoint, and how its slices
// come to rest.
#pragma once

#include <map>
#include <string>

#include "checkpoint/manifest.h"
#include "engine/engine_state.h"

namespace zerorun {

inline constexpr const char* kBuffersFile = "buffers.safetensors";
inline constexpr const char* kFrozenFile = "frozen.safetensors";  // what every rank has whole

/// "bucket-00003-rank-00001.safetensors"
std::string name_of_file(int bucket, int rank);
/// Of its master weights and moments in files: "bucket-00003-rank-00001-offloaded.safetensors"
std::string name_of_slot(int bucket, int rank);
/// Of its values in files: "bucket-00003-rank-00001-offloaded-values.safetensors"
std::string name_of_value_slot(int bucket, int rank);

/// The state that a rank's own gradients are, where they are not summed over ranks yet.
std::string own_gradient_of(int rank);
/// Among each rank's numbers, in a checkpoint among micro-steps.
inline constexpr const char* kWindowArrivals = "window.arrivals";
inline constexpr const char* kWindowTally = "window.tally";
/// What a window of this engine is like, and how far it is.
SavedWindow saved_window(const EngineState& state);

/// As safetensors has it: "F32". Throws UserError for what is not saved.
const char* spelled(at::ScalarType dtype);
at::ScalarType dtype_of(const std::string& spelled_as);

/// What the program has written comes into this rank's slices and their master weights, as before an update.
/// `opens`: the current stream may also write to the slices, as an update does, until close_slices(); all
/// ranks say the same.
void open_slices(EngineState& state, bool opens, const std::string& label);
/// `gathers`: the other ranks' slices are theirs to bring.
void close_slices(EngineState& state, bool gathers);

/// The model's parameters and buffers, by name.
std::map<std::string, SavedParameter> saved_parameters(const EngineState& state);

}  // namespace zerorun
