#include "convert/deepspeed_partitions.h"

#include <algorithm>

#include "base/error.h"

namespace zerorun::convert {
namespace {

[[noreturn]] void fail_short(const PartitionedState& state, size_t rank, int64_t needed) {
  const SourceTensor& source = *state.by_rank[rank];
  throw UserError(source.file->path().string() + ": " + state.name + " has " +
                  std::to_string(source.tensor.numel) + " elements of rank " + std::to_string(rank) +
                  "'s partition, the parameters' shapes need " + std::to_string(needed));
}

[[noreturn]] void fail_unused(const PartitionedState& state, size_t rank, int64_t stored, int64_t used) {
  throw UserError(state.by_rank[rank]->file->path().string() + ": " + state.name + " has " +
                  std::to_string(stored) + " elements, of which the parameters' shapes use " +
                  std::to_string(used) +
                  ": the ranks have partitioned it in a way that this reader does not know");
}

}  // namespace

void check_ranks(const PartitionedState& state, size_t ranks, const std::string& place) {
  if (state.by_rank.size() != ranks)
    throw UserError(place + ": " + state.name + " is in the files of " +
                    std::to_string(state.by_rank.size()) + " ranks, expected " + std::to_string(ranks));
  for (const SourceTensorPtr& source : state.by_rank) {
    if (source->tensor.dtype != state.by_rank.front()->tensor.dtype)
      throw UserError(source->file->path().string() + ": " + state.name +
                      " has another dtype than on rank 0");
  }
}

// Uses the rule of https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/utils/zero_to_fp32.py:
// rounds both element counts up to a multiple of twice the world size and compares the results.
void check_flat_is_used(const PartitionedState& state, int64_t numel) {
  const int64_t multiple = 2 * static_cast<int64_t>(state.by_rank.size());
  int64_t stored = 0;
  for (const SourceTensorPtr& source : state.by_rank) stored += source->tensor.numel;
  const auto rounded = [&](int64_t count) { return count / multiple + (count % multiple != 0 ? 1 : 0); };
  if (rounded(stored) != rounded(numel)) fail_unused(state, state.by_rank.size() - 1, stored, numel);
}

void check_ranks_are_used(const PartitionedState& state, int64_t numel) {
  for (size_t rank = 0; rank < state.by_rank.size(); ++rank) {
    if (state.by_rank[rank]->tensor.numel != numel)
      fail_unused(state, rank, state.by_rank[rank]->tensor.numel, numel);
  }
}

std::vector<SourcePiece> pieces_of_flat(const PartitionedState& state, int64_t begin, int64_t numel) {
  // The partitions are filled in rank order. So rank 0's stored size is the partition size, unless rank 0 has
  // all elements.
  const int64_t partition = state.by_rank.front()->tensor.numel;
  std::vector<SourcePiece> pieces;
  const int64_t end = begin + numel;
  while (begin < end) {
    const size_t last = state.by_rank.size() - 1;
    const size_t rank = partition == 0 ? last : std::min(static_cast<size_t>(begin / partition), last);
    const int64_t offset = begin - static_cast<int64_t>(rank) * partition;
    const int64_t stored = state.by_rank[rank]->tensor.numel;
    const int64_t needed =
        rank == last ? offset + (end - begin) : std::min(partition, offset + (end - begin));
    if (needed > stored) fail_short(state, rank, needed);
    pieces.push_back({state.by_rank[rank], offset, needed - offset});
    begin += needed - offset;
  }
  return pieces;
}

int64_t share_of(int64_t numel, size_t ranks) {
  const auto count = static_cast<int64_t>(ranks);
  return numel / count + (numel % count != 0 ? 1 : 0);
}

std::vector<SourcePiece> pieces_by_rank(const PartitionedState& state, int64_t begin, int64_t numel) {
  const int64_t share = share_of(numel, state.by_rank.size());
  std::vector<SourcePiece> pieces;
  for (size_t rank = 0; numel > 0; ++rank) {
    const int64_t count = std::min(share, numel);
    if (state.by_rank[rank]->tensor.numel - begin < count) fail_short(state, rank, begin + count);
    pieces.push_back({state.by_rank[rank], begin, count});
    numel -= count;
  }
  return pieces;
}

}  // namespace zerorun::convert
