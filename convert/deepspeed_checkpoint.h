// Reads a checkpoint that DeepSpeed has written: stages 0 to 3, with offload, and universal folders. Its
// files become parameters with states, each made of pieces of the files' tensors; nothing is copied until
// it is read. Used by one thread. docs/interchange.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "convert/deepspeed_facts.h"
#include "convert/deepspeed_partitions.h"

namespace zerorun {

/// One state of one parameter. The pieces cover its elements, in order.
struct SourceState {
  std::string dtype;
  std::vector<SourcePiece> pieces;
};

struct SourceParameter {
  SavedParameter facts;
  std::map<std::string, SourceState> states;  // "value" or "master", and the optimizer's: "exp_avg"
};

struct DeepSpeedCheckpoint {
  std::string tag;
  int stage = 0;
  DeepSpeedFacts facts;
  std::map<std::string, SourceParameter> parameters;
  std::vector<std::unique_ptr<TorchFile>> files;
};

/// `folder`: a tag's folder, or the folder above it with the file `latest`. `files` must outlive the result.
/// Throws UserError naming the file and the key that is missing, contradictory or not supported.
DeepSpeedCheckpoint read_deepspeed_checkpoint(FileSystem& files, const std::filesystem::path& folder);

/// Reads elements of a state, from `begin` on, as many as `into` takes.
void read(const SourceState& state, int64_t begin, std::span<std::byte> into);

}  // namespace zerorun
