// manifest.json, which describes a checkpoint (docs/checkpoint_format.md). Plain values; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/mesh_sizes.h"
#include "checkpoint/saved_parameter.h"
#include "checkpoint/state_file.h"

namespace zerorun::checkpoint {

/// A number or a byte string that a restart needs in addition to the slices.
using RestartValue = std::variant<int64_t, double, std::vector<uint8_t>>;
using RestartValues = std::map<std::string, RestartValue>;

/// Describes the gradients of a checkpoint that was saved between two micro-steps of an optimizer step.
struct SavedWindow {
  int64_t micro_steps = 0;         // micro-steps since the last optimizer step
  int64_t accumulation_steps = 1;  // micro-steps per optimizer step
  bool is_summed = false;          // true: gradients are summed over ranks; false: each rank has its own
  std::string dtype;               // dtype of the gradients
  std::string communication;       // dtype of gradients in collectives
  double factor = 1;               // factor by which the gradients have been multiplied
  double loss_scale = 1;           // loss scale, by which the gradients have been multiplied too
  friend bool operator==(const SavedWindow&, const SavedWindow&) = default;
};

/// The file of the tensors to which the program's client_state refers. It has no ranges.
inline constexpr const char* kClientTensorsFile = "client_state.safetensors";

struct Manifest {
  std::string tag;
  /// Grows with each save into the folder, so it tells which of two checkpoints is newer. 0: unknown (version
  /// 1 of the manifest).
  int64_t saving = 0;
  int64_t generation = 0;  // number of applied optimizer steps
  int world_size = 1;      // of the run that wrote the checkpoint, as are stage and precision
  int stage = 0;
  std::string precision;
  std::string optimizer;  // "AdamW"
  std::map<std::string, SavedParameter> parameters;
  std::map<std::string, StateFileFacts> files;
  std::vector<RestartValues> numbers;  // by rank
  std::optional<SavedWindow> window = {};
  std::string client_state = "null";   // as JSON text
  std::optional<MeshSizes> mesh = {};  // resolved; absent: all ranks are data ranks
  std::string checksum = {};           // of a manifest that was read: two with the same checksum say the same
};

/// The mesh of the run that wrote the checkpoint.
MeshSizes mesh_of(const Manifest& manifest);

std::string to_json(const Manifest& manifest);
/// Throws UserError if `text` is not a valid manifest. The message names `place` and the defect.
Manifest parse_manifest(const std::string& text, const std::string& place);

/// What removing and ordering checkpoints need of a manifest of any version.
struct ManifestOutline {
  std::set<std::string> files;  // names of the folder's files, without the manifest's own
  int64_t saving = 0;           // 0: unknown
};
/// Absent if `text` is not the manifest of a checkpoint of ZeroRun. Does not compare the checksum: a damaged
/// checkpoint is ours too.
std::optional<ManifestOutline> outline_of(const std::string& text);

/// Returns one rank's part of the manifest (its files and its `numbers`) as a text. Each rank sends this text
/// to rank 0, where add_part() adds it to the manifest.
std::string to_json(const std::map<std::string, StateFileFacts>& files, const RestartValues& numbers);
void add_part(Manifest& manifest, const std::string& text, const std::string& place);

}  // namespace zerorun::checkpoint
