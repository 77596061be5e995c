// Code that saving and loading share: the names of an engine's state in a checkpoint, and functions that
// prepare the engine's slices before they are read or written.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "checkpoint/manifest.h"
#include "engine/engine_state.h"

namespace zerorun {

/// "bucket-00003-rank-00001.safetensors"
std::string name_of_file(int bucket, int rank);
/// For master weights and moments kept in files: "bucket-00003-rank-00001-offloaded.safetensors"
std::string name_of_slot(int bucket, int rank);
/// For values kept in files: "bucket-00003-rank-00001-offloaded-values.safetensors"
std::string name_of_value_slot(int bucket, int rank);

/// Name of the state that holds `rank`'s own gradients, before they are summed over ranks.
std::string own_gradient_of(int rank);
/// Keys in each rank's Manifest::numbers, in a checkpoint saved between micro-steps.
inline constexpr const char* kWindowArrivals = "window.arrivals";
inline constexpr const char* kWindowTally = "window.tally";
/// The settings and the progress of this engine's accumulation window.
checkpoint::SavedWindow saved_window(const EngineState& state);

/// The dtype's name in safetensors: "F32". Throws UserError for a dtype that cannot be saved.
const char* spelled(at::ScalarType dtype);
at::ScalarType dtype_of(const std::string& spelled_as);

/// Copies the program's writes to parameters into this rank's slices and their master weights; each update
/// begins with the same copy. If `opens` is true, the current stream may also write to the slices until
/// close_slices(). `opens` must be the same on all ranks.
void open_slices(EngineState& state, bool opens, const std::string& label);
/// Ends the period in which the slices may be written. `gathers`: also starts the all-gathers of buckets that
/// stay in memory.
void close_slices(EngineState& state, bool gathers);

/// Which part the elements of a parameter's state count in: checkpoint::StateRange::part.
int saved_part(const EngineState& state, int parameter, StateKind kind);
/// Whether this rank's data group writes states of this kind. Each is written by one group of those that have
/// the same.
bool writes(const EngineState& state, int bucket, StateKind kind);

/// The mesh of the job, if it has one: checkpoint::Manifest::mesh.
std::optional<MeshSizes> saved_mesh(const EngineState& state);

/// Whether an earlier pipeline stage has the tensor too, and writes it.
template <typename Named>
bool is_tied_behind(const Named& named) {
  return named.tied && named.tied->rank() > 0;
}
/// Whether this rank writes the buffers and whole frozen parameters of its pipeline stage.
bool writes_others(const EngineState& state);
/// The names of the files of these, which are those of a pipeline stage.
std::string name_of_buffers_file(const EngineState& state);
std::string name_of_frozen_file(const EngineState& state);
/// Whether a checkpoint's file has buffers.
bool is_buffers_file(const std::string& name);

/// A parameter of which this rank may have a part, as the whole one.
checkpoint::SavedParameter saved_parameter(const NamedParameter& parameter);

/// What is needed of a model before pipeline stages divide it. `parameters`: of all stages.
WholeModel whole_model(const ModelParameters& parameters, const Model& model);
/// The model's parameters and buffers, by name; if it is divided among pipeline stages, those of all.
std::map<std::string, checkpoint::SavedParameter> saved_parameters(const EngineState& state);

}  // namespace zerorun
