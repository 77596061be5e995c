// What this rank writes of a checkpoint: the contents of its files, and its part of the manifest.
#include "engine/saving/checkpoint_part.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "base/memory_report.h"
#include "checkpoint/checksums.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/saving/client_tensors.h"
#include "engine/saving/restart_items.h"
#include "zero/coded_states.h"

namespace zerorun {
namespace {

// Values that are always accessible are copied at once, because the engine does not see the program's writes
// to them. On a device with streams all values are copied at once, because gathers read and sometimes write
// them: a copy at once runs on the current stream, which is ordered with gathers.
CopyTime copy_time(const EngineState& state, int bucket, const StateTensor& kept, ReadTime time) {
  if (kept.home == Home::host || time == ReadTime::at_once) return CopyTime::before_change;
  const BucketKind bucket_kind = state.buckets.kind(bucket);
  const bool is_seen = state.residency && (bucket_kind.around_uses() || bucket_kind.copied_for_writes()) &&
                       !state.mesh.data().device().streams().asynchronous();
  return kept.kind == StateKind::value && !is_seen ? CopyTime::at_once : CopyTime::before_change;
}

// Whether the state is read in place; else it is copied to the host while training goes on.
bool lies_on_host(const EngineState& state, const StateTensor& kept) {
  return kept.home == Home::host || !state.mesh.data().device().streams().asynchronous();
}

std::map<std::string, std::string> metadata_of(std::map<std::string, std::string> more = {}) {
  more.insert({{"format", "zerorun"}, {"version", "1"}});
  return more;
}

// Adds this rank's gradients of an unfinished accumulation window: its slices of the sums over data ranks, or
// all of its own gradients. Gradients are copied at once, because code that changes them does not call
// keep().
void add_gradients(EngineState& state, int bucket, const WindowSoFar& window, checkpoint::FileToWrite& file) {
  StatePins& pins = state.checkpoints.pins();
  auto add = [&](int parameter, const std::string& name, int64_t begin, const at::Tensor& values) {
    file.ranges.push_back({.range = {.parameter = state.buckets.parameters()[parameter].name,
                                     .state = name,
                                     .dtype = spelled(values.scalar_type()),
                                     .begin = begin,
                                     .numel = values.numel(),
                                     .part = saved_part(state, parameter, StateKind::gradient)},
                           .source = pins.pin(values, CopyTime::at_once)});
  };
  for (int parameter : state.store.layout(bucket).parameters) {
    if (window.has_gradient[parameter] == 0) continue;
    if (!state.reducer.reduces_every_backward()) {
      const at::Tensor& own = state.store.at(bucket, kGradient).memory;
      add(parameter, own_gradient_of(state.mesh.world().rank()), 0, state.buckets.piece(parameter, own));
      continue;
    }
    if (!writes(state, bucket, StateKind::gradient)) continue;
    state.store.for_each_piece_of(0, parameter, [&](const StatePiece& piece) {
      if (piece.state->kind == StateKind::gradient) add(parameter, kGradient, piece.begin, piece.values);
    });
  }
}

checkpoint::FileToWrite file_of_bucket(EngineState& state, int bucket,
                                       const std::optional<WindowSoFar>& window, ReadTime read_time,
                                       std::vector<std::weak_ptr<checkpoint::MemorySnapshot>>& pinned) {
  const int rank = state.mesh.world().rank();
  const bool is_frozen = bucket >= state.buckets.trained_count();
  struct Source {
    std::shared_ptr<checkpoint::MemorySnapshot> snapshot;
    at::ScalarType dtype = at::kFloat;
  };
  std::map<const StateTensor*, Source> sources;
  const auto source_of = [&](const StateTensor& kept) -> Source {
    if (has_codes(kept)) {
      const AllocatingFor use(MemoryUse::checkpoint);
      return {zerorun::pinned(numbers_of(state.store, bucket, kept, Extent::slice)), at::kFloat};
    }
    const CopyTime time = copy_time(state, bucket, kept, read_time);
    auto snapshot =
        kept.home == Home::host ? zerorun::pinned(kept.own) : state.checkpoints.pins().pin(kept.own, time);
    if (time == CopyTime::before_change && lies_on_host(state, kept)) pinned.push_back(snapshot);
    return {std::move(snapshot), kept.own.scalar_type()};
  };
  checkpoint::FileToWrite file{
      .name = name_of_file(bucket, rank),
      .metadata =
          metadata_of({{"bucket", std::to_string(bucket)},
                       {"rank", std::to_string(rank)},
                       {"generation", std::to_string(is_frozen ? 0 : state.progress.counts().applied())}}),
      .ranges = {},
      .is_frozen = is_frozen};
  for (int parameter : state.store.layout(bucket).parameters) {
    if (!writes(state, bucket, StateKind::value)) break;
    const int64_t begin_in_slice = state.store.range_in_slice(parameter, state.store.rank()).begin;
    state.store.for_each_piece_of(0, parameter, [&](const StatePiece& piece) {
      const StateTensor& kept = *piece.state;
      if (kept.kind == StateKind::gradient || kept.home == Home::file) return;
      const auto [found, is_new] = sources.try_emplace(&kept);
      if (is_new) found->second = source_of(kept);
      const auto& [snapshot, dtype] = found->second;
      file.ranges.push_back(
          {.range = {.parameter = state.buckets.parameters()[parameter].name,
                     .state = kept.name,
                     .dtype = spelled(dtype),
                     .begin = piece.begin,
                     .numel = piece.values.numel(),
                     .part = saved_part(state, parameter, kept.kind)},
           .source = snapshot,
           .source_offset = begin_in_slice * static_cast<int64_t>(c10::elementSize(dtype))});
    });
  }
  if (window && !is_frozen) add_gradients(state, bucket, *window, file);
  std::ranges::stable_sort(file.ranges, {},
                           [](const checkpoint::RangeToWrite& range) { return range.range.state; });
  if (read_time == ReadTime::later) state.checkpoints.frozen().find_published(file);
  return file;
}

// Adds the bucket's states that are kept in files.
void add_slots(EngineState& state, int bucket, std::vector<checkpoint::FileToWrite>& files) {
  SliceStore& store = state.store;
  if (!writes(state, bucket, StateKind::value)) return;
  const bool is_frozen = bucket >= state.buckets.trained_count();
  const int part = saved_part(state, store.layout(bucket).parameters.front(), StateKind::value);
  auto add = [&](SliceFiles* slices, const std::string& name) {
    if (!slices || !slices->has(bucket)) return;
    LentSlot slot = slices->lend(bucket);
    for (checkpoint::StateRange& range : slot.facts.ranges) range.part = part;
    checkpoint::FileToWrite& file =
        files.emplace_back(checkpoint::FileToWrite{.name = name,
                                                   .metadata = {},
                                                   .ranges = {},
                                                   .is_frozen = is_frozen,
                                                   .slot = std::move(slot.file),
                                                   .slot_facts = std::move(slot.facts)});
    state.checkpoints.frozen().find_published(file);
  };
  add(store.files(), name_of_slot(bucket, state.mesh.world().rank()));
  add(store.value_files(), name_of_value_slot(bucket, state.mesh.world().rank()));
}

checkpoint::RangeToWrite whole_range(const NamedTensor& named, const at::Tensor& on_host) {
  return {.range = {.parameter = named.name,
                    .state = kValue,
                    .dtype = spelled(on_host.scalar_type()),
                    .begin = 0,
                    .numel = on_host.numel()},
          .source = pinned(on_host)};
}

// Not by the argument `memory_format` of to(): LibTorch returns a transposed matrix as it is even if that is
// MemoryFormat::Contiguous.
at::Tensor on_host(const at::Tensor& tensor, bool copy) {
  const at::Tensor values = tensor.detach().to(at::kCPU).contiguous();
  return copy && values.is_alias_of(tensor) ? values.clone() : values;
}

checkpoint::FileToWrite file_of_buffers(const EngineState& state, ReadTime time) {
  const AllocatingFor scope(MemoryUse::checkpoint);
  checkpoint::FileToWrite file{.name = name_of_buffers_file(state), .metadata = metadata_of(), .ranges = {}};
  for (const NamedTensor& other : state.unbucketed) {
    if (other.is_buffer && !is_tied_behind(other))
      file.ranges.push_back(whole_range(other, on_host(other.tensor, time == ReadTime::later)));
  }
  return file;
}

// Returns the file of the frozen parameters that every rank has in full. The engine does not see the
// program's writes to them, so a digest of the values shows whether the file of an earlier checkpoint is
// still current.
checkpoint::FileToWrite file_of_frozen(EngineState& state, ReadTime time) {
  const AllocatingFor scope(MemoryUse::checkpoint);
  checkpoint::FileToWrite file{
      .name = name_of_frozen_file(state), .metadata = metadata_of(), .ranges = {}, .is_frozen = true};
  std::vector<at::Tensor> values;
  std::vector<uint64_t> digests;
  for (const NamedTensor& other : state.unbucketed) {
    if (other.is_buffer || is_tied_behind(other)) continue;
    const at::Tensor& contiguous = values.emplace_back(on_host(other.tensor, false));
    digests.push_back(checkpoint::checksum_of(
        {static_cast<const std::byte*>(contiguous.const_data_ptr()), contiguous.nbytes()}));
  }
  file.digest = checkpoint::checksum_of(std::as_bytes(std::span(digests)));
  if (time == ReadTime::later) state.checkpoints.frozen().find_published(file);
  auto next = values.begin();
  for (const NamedTensor& other : state.unbucketed) {
    if (other.is_buffer || is_tied_behind(other)) continue;
    const at::Tensor& contiguous = *next++;
    const bool copies = time == ReadTime::later && !file.published && contiguous.is_alias_of(other.tensor);
    file.ranges.push_back(whole_range(other, copies ? contiguous.clone() : contiguous));
  }
  return file;
}

checkpoint::RestartValues numbers_of(EngineState& state) {
  checkpoint::RestartValues numbers;
  for (const RestartItem& item : restart_items(state)) numbers[item.name] = item.read();
  return numbers;
}

}  // namespace

void fill_part(EngineState& state, const std::string& tag, const CheckpointOptions& options, ReadTime time,
               CheckpointPart& part) {
  part.manifest = {.tag = tag,
                   .generation = state.progress.counts().applied(),
                   .world_size = state.mesh.world().world_size(),
                   .stage = state.config.zero.stage,
                   .precision = name_of(state.config.precision.training),
                   .optimizer = state.optimizer_name,
                   .parameters = saved_parameters(state),
                   .files = {},
                   .numbers = {numbers_of(state)},
                   .client_state = options.client_state,
                   .mesh = saved_mesh(state)};
  std::optional<WindowSoFar> window;
  if (state.progress.counts().micro > 0) {
    window = state.reducer.window_so_far();
    part.manifest.window = saved_window(state);
    part.manifest.numbers.front()[kWindowArrivals] = window->arrivals;
    part.manifest.numbers.front()[kWindowTally] = window->tally;
  }
  StatePins& pins = state.checkpoints.pins();
  pins.begin();
  part.pinned.resize(static_cast<size_t>(state.store.count()));
  const int buckets = options.exclude_frozen ? state.buckets.trained_count() : state.store.count();
  state.store.finish_generation();
  for (int bucket = 0; bucket < buckets; ++bucket) {
    part.files.push_back(file_of_bucket(state, bucket, window, time, part.pinned[bucket]));
    add_slots(state, bucket, part.files);
  }
  if (state.mesh.world().rank() == 0) part.files.push_back(file_of_client_tensors(options.client_tensors));
  if (writes_others(state)) {
    part.files.push_back(file_of_buffers(state, time));
    if (!options.exclude_frozen) part.files.push_back(file_of_frozen(state, time));
  }
  pins.end();
  if (window) {  // gradient hooks may write on other streams, so wait for the copy
    Streams& streams = state.mesh.data().device().streams();
    Event copied;
    streams.record(copied, streams.current());
    streams.await(copied, state.mesh.data().timeout(), "the copy of the gradients for a checkpoint");
  }
  std::erase_if(part.files,
                [](const checkpoint::FileToWrite& file) { return file.ranges.empty() && !file.slot; });
  if (!options.exclude_frozen) return;
  for (auto& [name, parameter] : part.manifest.parameters)
    parameter.excluded = !parameter.trained && !state.whole.buffers.contains(name);
  for (const NamedTensor& other : state.unbucketed)
    part.manifest.parameters[other.name].excluded = !other.is_buffer;
}

}  // namespace zerorun
