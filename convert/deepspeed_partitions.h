// Locates the elements of a parameter in the files of DeepSpeed's ranks: in the flat partitions of stages 1
// and 2, or in the partitions of stage 3. Pure functions; any thread. See docs/interchange.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "convert/torch_file.h"

namespace zerorun::convert {

/// A tensor in one of the checkpoint's files.
struct SourceTensor {
  TorchFile* file = nullptr;
  TorchTensor tensor;
};
using SourceTensorPtr = std::shared_ptr<const SourceTensor>;

/// Consecutive elements of a tensor.
struct SourcePiece {
  SourceTensorPtr source;
  int64_t begin = 0;  // first element, counted from the start of the tensor in memory order
  int64_t numel = 0;
};

/// One state of a parameter group, as one partition per rank.
struct PartitionedState {
  std::string name;  // for messages: "exp_avg"
  std::vector<SourceTensorPtr> by_rank;
};

/// Throws UserError unless each of `ranks` ranks has the state, all in the same dtype. `place` is for
/// messages.
void check_ranks(const PartitionedState& state, size_t ranks, const std::string& place);
/// Stages 1 and 2: throws UserError unless the partitions together hold `numel` elements, plus at most the
/// padding that makes DeepSpeed's partitions equally long.
void check_flat_is_used(const PartitionedState& state, int64_t numel);
/// Stage 3: throws UserError unless each rank's partition holds `numel` elements.
void check_ranks_are_used(const PartitionedState& state, int64_t numel);

/// Stages 1 and 2: the group's parameters are concatenated into one flat tensor, which is cut into partitions
/// of equal length. The last partitions may be stored without their padding. Returns the pieces with the
/// `numel` elements that start at `begin`. Throws UserError if the partitions do not have these elements.
std::vector<SourcePiece> pieces_of_flat(const PartitionedState& state, int64_t begin, int64_t numel);

/// Stage 3: each parameter is cut into one piece per rank, and each rank stores its pieces one after the
/// other. `begin` is the parameter's position in each rank's partition. Returns the pieces of the parameter,
/// which has `numel` elements.
std::vector<SourcePiece> pieces_by_rank(const PartitionedState& state, int64_t begin, int64_t numel);
/// The number of elements, with padding, that each rank stores of a parameter at stage 3.
int64_t share_of(int64_t numel, size_t ranks);

}  // namespace zerorun::convert
