// Where DeepSpeed's ranks keep the elements of a parameter: in the flat partitions of stages 1 and 2, or in
// the partitions of stage 3. Pure; any thread. docs/interchange.md
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "convert/torch_file.h"

namespace zerorun {

/// A tensor in one of the files.
struct SourceTensor {
  TorchFile* file = nullptr;
  TorchTensor tensor;
};
using SourceTensorPtr = std::shared_ptr<const SourceTensor>;

/// Consecutive elements of a tensor.
struct SourcePiece {
  SourceTensorPtr source;
  int64_t begin = 0;  // first element, counted from the tensor's first in memory order
  int64_t numel = 0;
};

/// One state of a parameter group: one partition for each rank.
struct PartitionedState {
  std::string name;  // "exp_avg", for messages
  std::vector<SourceTensorPtr> by_rank;
};

/// Throws UserError unless each of `ranks` ranks stores the state, in one dtype. `place`: for messages.
void check_ranks(const PartitionedState& state, size_t ranks, const std::string& place);
/// Stages 1 and 2: throws UserError unless the partitions hold `numel` elements and at most the padding with
/// which DeepSpeed makes partitions equally long.
void check_flat_is_used(const PartitionedState& state, int64_t numel);
/// Stage 3: throws UserError unless each rank's partition holds `numel` elements.
void check_ranks_are_used(const PartitionedState& state, int64_t numel);

/// Stages 1 and 2: one flat tensor has the group's parameters one after the other. The tensor is cut into
/// partitions of equal length; the last ones may be stored without padding. Returns the pieces that have the
/// `numel` elements from `begin` on. Throws UserError if the partitions do not have these elements.
std::vector<SourcePiece> pieces_of_flat(const PartitionedState& state, int64_t begin, int64_t numel);

/// Stage 3: each parameter is cut into one piece for each rank, and each rank stores its pieces one after the
/// other. Returns the pieces of the parameter with `numel` elements whose pieces begin at `begin`.
std::vector<SourcePiece> pieces_by_rank(const PartitionedState& state, int64_t begin, int64_t numel);
/// Elements of a parameter that each rank stores at stage 3, padding included.
int64_t share_of(int64_t numel, size_t ranks);

}  // namespace zerorun
