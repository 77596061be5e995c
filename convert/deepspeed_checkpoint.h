// Reads a checkpoint that DeepSpeed has written: stages 0 to 3, with offload, and universal folders. The
// result describes each state of each parameter as pieces of the tensors in the files. The tensors' elements
// are read only by read(). Used by one thread. docs/interchange.md.
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

/// One state of one parameter. The pieces have the state's elements, in order.
struct SourceState {
  std::string dtype;
  std::vector<SourcePiece> pieces;
};

struct SourceParameter {
  SavedParameter facts;
  std::map<std::string, SourceState> states;  // "value" or "master", and the optimizer's states: "exp_avg"
};

struct DeepSpeedCheckpoint {
  std::string tag;
  int stage = 0;
  DeepSpeedFacts facts;
  std::map<std::string, SourceParameter> parameters;
  std::vector<std::unique_ptr<TorchFile>> files;
};

/// `folder`: a tag's folder, or its parent folder with the file `latest`. `files` must outlive the result.
/// Throws UserError naming the file and the key that is missing, contradictory or not supported.
DeepSpeedCheckpoint read_deepspeed_checkpoint(FileSystem& files, const std::filesystem::path& folder);

/// Fills `into` with elements of a state, from element `begin` on.
void read(const SourceState& state, int64_t begin, std::span<std::byte> into);

}  // namespace zerorun
