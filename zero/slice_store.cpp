#include "zero/slice_store.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"

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

void SliceStore::keep_in_files(FileSystem& files, StateFilesOptions options,
                               std::span<const std::vector<StateInFile>> states,
                               std::span<const std::string> names) {
  std::vector<SliceContents> slices;
  slices_in_files_.assign(count(), -1);
  for (int bucket = 0; bucket < count(); ++bucket) {
    if (states[bucket].empty()) continue;
    slices_in_files_[bucket] = static_cast<int>(slices.size());
    SliceContents& contents = slices.emplace_back();
    contents.label = "bucket " + std::to_string(bucket);
    contents.metadata = {{"format", "zerorun"},
                         {"version", "1"},
                         {"bucket", std::to_string(bucket)},
                         {"rank", std::to_string(rank_)}};
    contents.numel = layout(bucket).slice_numel;
    for (const StateInFile& state : states[bucket]) contents.states.push_back({.name = state.name});
    for (const int parameter : layout(bucket).parameters) {
      const auto [begin, numel] = range_in_slice(parameter, rank_);
      if (numel == 0) continue;
      contents.parts.push_back(
          {.parameter = names[parameter],
           .begin = std::max<int64_t>(rank_ * contents.numel - layout_.placements[parameter].offset, 0),
           .begin_in_slice = begin,
           .numel = numel});
    }
    contents.label += contents.parts.empty() ? "" : " (" + contents.parts.front().parameter + " ...)";
  }
  files_ = std::make_unique<StateFiles>(files, std::move(options), std::move(slices));
  in_memory_.resize(files_->chunks());
  for (int bucket = 0; bucket < count(); ++bucket) add_chunks(bucket, states[bucket]);
}

void SliceStore::add_chunks(int bucket, std::span<const StateInFile> states) {
  for (size_t which = 0; which < states.size(); ++which) {
    const auto& [kind, name] = states[which];
    ZR_CHECK(!has(bucket, name), "\"" + name + "\" of bucket " + std::to_string(bucket) + " is kept already");
    StateTensor& state = states_[bucket].emplace_back(StateTensor{
        .kind = kind, .name = name, .extent = Extent::slice, .home = Home::file, .memory = {}, .own = {}});
    const std::vector<Chunk>& chunks = files_->layout(slices_in_files_[bucket]).chunks;
    for (size_t index = 0; index < chunks.size(); ++index) {
      c10::Storage& storage = in_memory_[number_of(bucket, static_cast<int>(index))].storage;
      if (!storage) {
        storage = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(chunks[index].bytes),
                               c10::DataPtr(nullptr, at::kCPU), nullptr, false);
      }
      at::Tensor& values = state.chunks.emplace_back(at::empty({0}, at::kFloat));
      values.set_(storage, chunks[index].state_offsets[which] / static_cast<int64_t>(sizeof(float)),
                  {chunks[index].numel}, {1});
    }
  }
}

int SliceStore::number_of(int bucket, int chunk) const {
  return files_->first_chunk(slices_in_files_[bucket]) + chunk;
}

int SliceStore::chunks(int bucket) const {
  const int slice = slice_in_files(bucket);
  return slice < 0 ? 1 : static_cast<int>(files_->layout(slice).chunks.size());
}

Range SliceStore::chunk_range(int bucket, int chunk) const {
  const int slice = slice_in_files(bucket);
  if (slice < 0) return {.begin = 0, .numel = layout(bucket).slice_numel};
  const Chunk& place = files_->layout(slice).chunks[chunk];
  return {.begin = place.begin, .numel = place.numel};
}

at::Tensor SliceStore::chunk(int bucket, const StateTensor& state, int chunk) const {
  if (state.home == Home::file) return state.chunks[chunk];
  const auto [begin, numel] = chunk_range(bucket, chunk);
  return state.own.narrow(0, begin, numel);
}

void SliceStore::open_chunk(int bucket, int chunk) {
  if (slice_in_files(bucket) < 0) return;
  const int number = number_of(bucket, chunk);
  std::byte* memory = files_->open(number);
  auto& [storage, opened] = in_memory_[number];
  if (opened++ == 0) storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(memory, at::kCPU));
}

void SliceStore::close_chunk(int bucket, int chunk, bool changed) {
  if (slice_in_files(bucket) < 0) return;
  const int number = number_of(bucket, chunk);
  auto& [storage, opened] = in_memory_[number];
  if (--opened == 0) storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, at::kCPU));
  files_->close(number, changed);
}

// While an exception is on its way.
void SliceStore::abandon_chunk(int bucket, int chunk, bool changed) noexcept {
  try {
    close_chunk(bucket, chunk, changed);
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

int64_t SliceStore::bytes(const StateTensor& state) const {
  if (state.home == Home::file) return 0;
  const auto bytes = static_cast<int64_t>(state.memory.nbytes());
  return state.home == Home::shared ? bytes / world_size_ : bytes;
}

}  // namespace zerorun
