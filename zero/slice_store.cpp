#include "zero/slice_store.h"

#include <utility>

#include "base/error.h"

namespace zerorun {

SliceStore::SliceStore(Layout layout, std::vector<int64_t> numels, int rank, int world_size)
    : layout_(std::move(layout)),
      numels_(std::move(numels)),
      rank_(rank),
      world_size_(world_size),
      states_(layout_.buckets.size()) {}

const StateTensor& SliceStore::put(int bucket, StateKind kind, std::string name, Extent extent,
                                   at::Tensor memory, Home home) {
  const std::string place = "\"" + name + "\" of bucket " + std::to_string(bucket);
  ZR_CHECK(!has(bucket, name), place + " is kept already");
  const int64_t numel = extent == Extent::slice ? layout(bucket).slice_numel : layout(bucket).numel;
  ZR_CHECK(memory.dim() == 1 && memory.numel() == numel, place + " has another length");
  at::Tensor own = extent == Extent::slice ? memory : slice_of(bucket, memory, rank_);
  return states_[bucket].emplace_back(StateTensor{.kind = kind,
                                                  .name = std::move(name),
                                                  .extent = extent,
                                                  .home = home,
                                                  .memory = std::move(memory),
                                                  .own = std::move(own)});
}

const StateTensor* SliceStore::find(int bucket, std::string_view name) const {
  const auto found = std::ranges::find(states_[bucket], name, &StateTensor::name);
  return found == states_[bucket].end() ? nullptr : &*found;
}

const StateTensor& SliceStore::at(int bucket, std::string_view name) const {
  const StateTensor* found = find(bucket, name);
  ZR_CHECK(found, "bucket " + std::to_string(bucket) + " keeps no \"" + std::string(name) + "\"");
  return *found;
}

at::Tensor SliceStore::slice(int bucket, std::string_view name, int rank) const {
  const StateTensor& state = at(bucket, name);
  if (state.extent == Extent::bucket) return slice_of(bucket, state.memory, rank);
  ZR_CHECK(rank == rank_, "\"" + state.name + "\" of bucket " + std::to_string(bucket) +
                              " is kept of this rank's slice only, not of rank " + std::to_string(rank) +
                              "'s");
  return state.memory;
}

at::Tensor SliceStore::slice_of(int bucket, const at::Tensor& flat, int rank) const {
  const int64_t numel = layout(bucket).slice_numel;
  return flat.narrow(0, rank * numel, numel);
}

Range SliceStore::range_in_slice(int parameter, int rank) const {
  const auto [bucket, offset] = layout_.placements[parameter];
  const int64_t slice = layout(bucket).slice_numel;
  const int64_t begin = std::max(offset, rank * slice);
  const int64_t end = std::min(offset + numels_[parameter], (rank + 1) * slice);
  return {.begin = begin - rank * slice, .numel = std::max<int64_t>(end - begin, 0)};
}

int64_t SliceStore::bytes(const StateTensor& state) const {
  const auto bytes = static_cast<int64_t>(state.memory.nbytes());
  return state.home == Home::shared ? bytes / world_size_ : bytes;
}

}  // namespace zerorun
