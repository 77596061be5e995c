// Reads a checkpoint that DeepSpeed has written: stages 0 to 3, with or without offload, and universal
// checkpoints. The result describes each state of each parameter as pieces of tensors in the files; only
// read() reads elements. Used by one thread. See docs/interchange.md.
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

namespace zerorun::convert {

/// One state of one parameter. The pieces together have the elements of the state, in order.
struct SourceState {
  std::string dtype;
  std::vector<SourcePiece> pieces;
};

struct SourceParameter {
  checkpoint::SavedParameter facts;
  std::map<std::string, SourceState> states;  // "value" or "master", and "exp_avg" etc.
};

struct DeepSpeedCheckpoint {
  std::filesystem::path folder;  // of the tag
  std::string tag;
  int stage = 0;
  DeepSpeedFacts facts;
  std::map<std::string, SourceParameter> parameters;
  std::vector<std::unique_ptr<TorchFile>> files;
};

/// `folder` is a tag's folder, or its parent folder with the file `latest`. `files` must outlive the result.
/// Throws UserError naming the file and the key that is missing, contradictory or unsupported.
DeepSpeedCheckpoint read_deepspeed_checkpoint(checkpoint::FileSystem& files,
                                              const std::filesystem::path& folder);

/// Fills `into` with elements of a state, starting at element `begin`.
void read(const SourceState& state, int64_t begin, std::span<std::byte> into);

}  // namespace zerorun::convert
