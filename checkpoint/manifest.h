// manifest.json, which describes a checkpoint (docs/checkpoint_format.md). Plain values; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/state_file.h"

namespace zerorun {

/// A number or bytes that a restart needs besides the slices.
using RestartValue = std::variant<int64_t, double, std::vector<uint8_t>>;
using RestartValues = std::map<std::string, RestartValue>;

struct SavedParameter {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // ranges have their elements in the memory order of these strides
  bool trained = true;
  bool excluded = false;                  // in no file: the program that loads the checkpoint must have it
  std::vector<std::string> aliases = {};  // other names of the same parameter (tied weights)
  friend bool operator==(const SavedParameter&, const SavedParameter&) = default;
};

/// The gradients of a checkpoint that was saved between the micro-steps of an optimizer step.
struct SavedWindow {
  int64_t micro_steps = 0;         // since the last optimizer step
  int64_t accumulation_steps = 1;  // micro-steps of a whole window
  bool is_summed = false;          // gradients are sums over ranks; else each rank's own
  std::string dtype;               // of the gradients
  std::string communication;       // dtype of gradients in collectives
  double factor = 1;               // by which the gradients have been multiplied
  double loss_scale = 1;           // the gradients have been multiplied by this too
  friend bool operator==(const SavedWindow&, const SavedWindow&) = default;
};

struct Manifest {
  std::string tag;
  int64_t generation = 0;  // optimizer steps that were applied
  int world_size = 1;      // of the run that wrote the checkpoint, like stage and precision
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

/// Throws UserError unless `text` is JSON. `what`: the name of `text` in the message.
void check_json(const std::string& text, const std::string& what);

/// One rank's part of the manifest, its files and its `numbers`: the text that the rank sends to rank 0.
std::string to_json(const std::map<std::string, StateFileFacts>& files, const RestartValues& numbers);
void add_part(Manifest& manifest, const std::string& text, const std::string& place);

}  // namespace zerorun
