// What a checkpoint says of itself: manifest.json. docs/checkpoint_format.md. Plain values; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/state_file.h"

namespace zerorun {

/// A number or bytes that outlive a process, beside slices.
using RestartValue = std::variant<int64_t, double, std::vector<uint8_t>>;
using RestartValues = std::map<std::string, RestartValue>;

struct SavedParameter {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // elements of a range are in the order of memory
  bool trained = true;
  bool excluded = false;                  // it is in no file: who loads the checkpoint has it
  std::vector<std::string> aliases = {};  // other names of the same parameter (tied weights)
  friend bool operator==(const SavedParameter&, const SavedParameter&) = default;
};

/// Of a checkpoint among the micro-steps of an optimizer step: whose gradients it has, and for whom.
struct SavedWindow {
  int64_t micro_steps = 0;         // behind the last optimizer step
  int64_t accumulation_steps = 1;  // of a whole window
  bool is_summed = false;          // over ranks; else each rank's own
  std::string dtype;               // of the gradients
  std::string communication;       // the dtype in which they travel
  double factor = 1;               // that they have been multiplied with
  double loss_scale = 1;           // likewise
  friend bool operator==(const SavedWindow&, const SavedWindow&) = default;
};

struct Manifest {
  std::string tag;
  int64_t generation = 0;  // optimizer steps that were applied
  int world_size = 1;      // of the writer, as stage and precision
  int stage = 0;
  std::string precision;
  std::string optimizer;  // "AdamW"
  std::map<std::string, SavedParameter> parameters;
  std::map<std::string, StateFileFacts> files;
  std::vector<RestartValues> numbers;  // by rank
  std::optional<SavedWindow> window = {};
  std::string client_state = "null";  // JSON
};

std::string to_json(const Manifest& manifest);
/// Throws UserError naming `place` and what is wrong.
Manifest parse_manifest(const std::string& text, const std::string& place);

/// Throws UserError unless `text` is JSON. `what`: whose it is.
void check_json(const std::string& text, const std::string& what);

/// One file's part of it, and what one rank adds to `numbers`: how ranks tell them to each other.
std::string to_json(const std::map<std::string, StateFileFacts>& files, const RestartValues& numbers);
void add_part(Manifest& manifest, const std::string& text, const std::string& place);

}  // namespace zerorun
