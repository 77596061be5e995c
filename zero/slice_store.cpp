#include "zero/slice_store.h"

#include <utility>

#include "base/error.h"
#include "checkpoint/safetensors_dtype.h"
#include "device/moment_codes.h"

namespace zerorun {

SliceStore::SliceStore(Layout layout, std::vector<int64_t> numels, int rank, int world_size)
    : layout_(std::move(layout)),
      numels_(std::move(numels)),
      rank_(rank),
      world_size_(world_size),
      ranks_sharing_(world_size),
      states_(layout_.buckets.size()) {}

const StateTensor& SliceStore::put(int bucket, StateKind kind, std::string name, Extent extent,
                                   at::Tensor memory, Home home, at::Tensor scales) {
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
                                                  .own = std::move(own),
                                                  .scales = std::move(scales)});
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

at::Tensor SliceStore::scales(int bucket, std::string_view name, int rank) const {
  const StateTensor& state = at(bucket, name);
  if (!state.scales.defined() || state.extent == Extent::slice) return state.scales;
  const int64_t blocks = layout(bucket).slice_numel / kCodedBlock;
  return run_of(state.scales, rank * blocks, blocks);
}

at::Tensor SliceStore::slice_of(int bucket, const at::Tensor& flat, int rank) const {
  const int64_t numel = layout(bucket).slice_numel;
  return run_of(flat, rank * numel, numel);
}

Range SliceStore::range_in_slice(int parameter, int rank) const {
  const auto [bucket, offset] = layout_.locations[parameter];
  const int64_t slice = layout(bucket).slice_numel;
  const Range here = overlap({offset, numels_[parameter]}, {rank * slice, slice});
  return {.begin = here.begin - rank * slice, .numel = here.numel};
}

int64_t SliceStore::index_in_parameter(int parameter, int rank, int64_t in_slice) const {
  const auto [bucket, offset] = layout_.locations[parameter];
  return rank * layout(bucket).slice_numel + in_slice - offset;
}

SliceContents SliceStore::contents_of(int bucket, std::vector<SliceState> states,
                                      std::span<const std::string> names,
                                      const StateFilesOptions& options) const {
  SliceContents contents{.label = "bucket " + std::to_string(bucket),
                         .metadata = {{"format", "zerorun"},
                                      {"version", "1"},
                                      {"bucket", std::to_string(bucket)},
                                      {"rank", std::to_string(options.rank)}},
                         .numel = layout(bucket).slice_numel,
                         .states = std::move(states),
                         .parts = {}};
  for (const int parameter : layout(bucket).parameters) {
    const auto [begin, numel] = range_in_slice(parameter, rank_);
    if (numel == 0) continue;
    contents.parts.push_back({.parameter = names[parameter],
                              .begin = index_in_parameter(parameter, rank_, begin),
                              .begin_in_slice = begin,
                              .numel = numel});
  }
  contents.label += contents.parts.empty() ? "" : " (" + contents.parts.front().parameter + " ...)";
  return contents;
}

StateTensor& SliceStore::add_in_files(int bucket, StateKind kind, const std::string& name) {
  ZR_CHECK(!has(bucket, name), "\"" + name + "\" of bucket " + std::to_string(bucket) + " is kept already");
  return states_[bucket].emplace_back(StateTensor{
      .kind = kind, .name = name, .extent = Extent::slice, .home = Home::file, .memory = {}, .own = {}});
}

void SliceStore::keep_in_files(checkpoint::FileSystem& files, StateFilesOptions options,
                               std::span<const std::vector<StateInFile>> states,
                               std::span<const std::string> names) {
  std::vector<SliceContents> slices;
  for (int bucket = 0; bucket < count(); ++bucket) {
    std::vector<SliceState> of_bucket;
    for (const StateInFile& state : states[bucket])
      of_bucket.push_back({.name = state.name, .dtype = safetensors_name(state.dtype)});
    slices.push_back(contents_of(bucket, std::move(of_bucket), names, options));
  }
  files_ = std::make_unique<SliceFiles>(files, std::move(options), slices);
  for (int bucket = 0; bucket < count(); ++bucket) {
    for (size_t which = 0; which < states[bucket].size(); ++which) {
      StateTensor& state = add_in_files(bucket, states[bucket][which].kind, states[bucket][which].name);
      for (int chunk = 0; chunk < files_->chunks(bucket); ++chunk)
        state.chunks.push_back(files_->tensor(bucket, which, chunk));
    }
  }
}

void SliceStore::keep_values_in_files(checkpoint::FileSystem& files, StateFilesOptions options, Dtype dtype,
                                      std::span<const int> buckets, std::span<const std::string> names) {
  std::vector<SliceContents> slices(count());
  for (const int bucket : buckets)
    slices[bucket] =
        contents_of(bucket, {{.name = kValue, .dtype = safetensors_name(dtype)}}, names, options);
  value_files_ = std::make_unique<SliceFiles>(files, std::move(options), slices);
  for (const int bucket : buckets) {
    ZR_CHECK(value_files_->chunks(bucket) == 1, "values come as whole slices");
    add_in_files(bucket, StateKind::value, kValue).own = value_files_->tensor(bucket, 0, 0);
  }
}

void SliceStore::finish_generation() {
  if (files_) files_->finish_generation();
  if (value_files_) value_files_->finish_generation();
}

int SliceStore::chunks(int bucket) const {
  return has_in_files(bucket) ? files_->chunks(bucket) : 1;
}

Range SliceStore::chunk_range(int bucket, int chunk) const {
  if (has_in_files(bucket)) return files_->chunk_range(bucket, chunk);
  return {.begin = 0, .numel = layout(bucket).slice_numel};
}

at::Tensor SliceStore::chunk(int bucket, const StateTensor& state, int chunk) const {
  if (!state.chunks.empty()) return state.chunks[chunk];
  const auto [begin, numel] = chunk_range(bucket, chunk);
  return run_of(state.own, begin, numel);
}

void SliceStore::open_chunk(int bucket, int chunk) {
  if (has_in_files(bucket)) files_->open(bucket, chunk);
}

void SliceStore::close_chunk(int bucket, int chunk, bool changed) {
  if (has_in_files(bucket)) files_->close(bucket, chunk, changed);
}

void SliceStore::open_values(int bucket, ValueUse use) {
  if (has_values_in_files(bucket)) value_files_->open(bucket, 0, use == ValueUse::overwrite);
}

void SliceStore::close_values(int bucket, ValueUse use) {
  if (has_values_in_files(bucket)) value_files_->close(bucket, 0, use != ValueUse::read);
}

int64_t SliceStore::bytes(const StateTensor& state) const {
  if (state.home == Home::file) return 0;
  int64_t bytes = static_cast<int64_t>(state.memory.nbytes());
  if (state.scales.defined()) bytes += static_cast<int64_t>(state.scales.nbytes());
  return state.home == Home::shared ? bytes / ranks_sharing_ : bytes;
}

}  // namespace zerorun
