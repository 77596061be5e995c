#include "engine/saving/restore.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/progress_bar.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/saving/restart_items.h"
#include "engine/step_hashes.h"
#include "zero/coded_states.h"

namespace zerorun {

using checkpoint::WantedElements;

namespace {

// Puts elements to their places in `values`, which has those from element `begin` of the part on.
auto put_into(const at::Tensor& values, int64_t begin, const std::string& dtype) {
  return [values, begin, from_dtype = dtype_of(dtype)](const checkpoint::ElementRows& rows,
                                                       std::span<const std::byte> from) {
    const at::Tensor elements =
        at::from_blob(const_cast<std::byte*>(from.data()), rows.sizes, rows.from_strides, from_dtype);
    values.as_strided(rows.sizes, rows.to_strides, values.storage_offset() + rows.to - begin).copy_(elements);
  };
}

}  // namespace

Restore::Restore(EngineState& state, checkpoint::SavedState& saved, const RestoreOptions& options)
    : state_(&state), saved_(&saved), options_(options) {
  for (const auto& [name, parameter] : saved.manifest().parameters) {
    names_[name] = name;
    for (const std::string& alias : parameter.aliases) names_.emplace(alias, name);
  }
}

void Restore::read_slices() {
  if (has_window()) {
    for (int bucket = 0; bucket < state_->buckets.trained_count(); ++bucket)
      state_->mesh.data().device().zero(state_->store.at(bucket, kGradient).memory);
  }
  int64_t numel = 0;
  for (const BucketLayout& bucket : state_->store.layout().buckets) numel += bucket.numel;
  ProgressBar bar("loading the checkpoint", numel, state_->mesh.world().rank() == 0);
  for (int bucket = 0; bucket < state_->store.count(); ++bucket) {
    state_->store.with_values(bucket, ValueUse::change, [&] { read_slice(bucket); });
    bar.advance(state_->store.layout(bucket).numel);
  }
  state_->store.finish_generation();
}

void Restore::gather_slices() const {
  if (state_->mesh.shards().world_size() == 1) return;
  state_->store.for_each([&](int bucket, const StateTensor& kept) {
    const bool by_residency = kept.kind == StateKind::value && state_->residency;
    if (kept.extent == Extent::slice || kept.kind == StateKind::gradient || by_residency) return;
    const std::string what = kept.name + " of " + state_->buckets.label(bucket);
    state_->mesh.shards().all_gather(kept.memory, kept.own, what)->wait();
    if (!has_codes(kept)) return;
    const at::Tensor scales = state_->store.scales(bucket, kept.name, state_->store.rank());
    state_->mesh.shards().all_gather(kept.scales, scales, "scales of " + what)->wait();
  });
}

void Restore::read_module() const {
  for (const auto& [name, tensor, dtype, is_buffer, tied] : state_->unbucketed) {
    if (tensor.numel() == 0 || !is_there(name)) continue;
    const std::string& saved = names_.at(name);
    const std::string source = source_of_values(saved);
    const at::Tensor target =
        tensor.is_non_overlapping_and_dense() ? tensor.detach() : at::empty(tensor.sizes(), tensor.options());
    const WantedElements all{
        .parameter = saved,
        .state = source,
        .own = {.shape = target.sizes().vec(), .strides = target.strides().vec()},
        .numel = target.numel(),
        .put = put_into(target.as_strided({target.numel()}, {1}), 0, saved_->dtype_of(saved, source))};
    saved_->read({&all, 1});
    if (!target.is_alias_of(tensor)) tensor.detach().copy_(target);
  }
}

void Restore::restore_numbers() const {
  const checkpoint::Manifest& manifest = saved_->manifest();
  const bool same_ranks = manifest.world_size == state_->mesh.world().world_size();
  const bool same_precision = manifest.precision == name_of(state_->config.precision.training);
  for (const RestartItem& item : restart_items(*state_)) {
    const bool is_generator = item.name.starts_with("generator.");
    // The optimizer's step count belongs to its moments, so optimizer_states decides about both.
    const bool wanted = item.name == "steps.optimizer" ? options_.optimizer_states : options_.counters;
    if (!wanted || (is_generator && !same_ranks)) continue;
    const checkpoint::RestartValues& numbers =
        manifest.numbers[is_generator ? state_->mesh.world().rank() : 0];
    const auto found = numbers.find(item.name);
    if (found != numbers.end()) {
      if (found->second.index() != item.read().index()) {
        throw UserError("the checkpoint's \"" + item.name + "\" is of another kind");
      }
      item.write(found->second);
    } else if (same_precision && !item.may_be_missing) {
      throw UserError(
          "the checkpoint has no \"" + item.name +
          "\": it was written with other parameter groups; load with RestoreOptions::counters = false");
    }
  }
  if (state_->hashes) state_->hashes->restart();
  if (!options_.counters) return;
  check_counts(manifest);
  // Starts a new window, unless the checkpoint was saved within a window, which is then continued.
  StepCounts& counts = state_->progress.restored_counts();
  counts.micro = 0;
  counts.samples = counts.global * state_->config.batch.train_batch_size;
  state_->held.forget_drops();
  state_->monitor->drop_losses();
  if (has_window()) resume_window();
  state_->schedule.resume(state_->progress.counts().applied());
  state_->schedule.ask(state_->progress.counts().applied());
}

bool Restore::is_there(const std::string& parameter) const {
  const auto found = names_.find(parameter);
  return found != names_.end() && !saved_->manifest().parameters.at(found->second).excluded;
}

bool Restore::is_read(int parameter, const StateTensor& state) const {
  const NamedParameter& own = state_->buckets.parameters()[parameter];
  const std::string& name = own.name;
  // No file has states of a parameter without elements.
  if (state.kind == StateKind::gradient || own.tensor.numel() == 0 || !is_there(name)) return false;
  // A parameter that was frozen in the checkpoint and is trained now keeps the moments that it has here.
  return state.kind != StateKind::moment ||
         (options_.optimizer_states && saved_->manifest().parameters.at(names_.at(name)).trained);
}

void Restore::read_slice(int bucket) {
  const auto& parameters = state_->buckets.parameters();
  for (const int index : state_->store.layout(bucket).parameters) {
    if (has_window() && parameters[index].group != kFrozen && is_there(parameters[index].name))
      read_gradients(index);
  }
  SliceStore& store = state_->store;
  std::map<const StateTensor*, at::Tensor> decoded;  // this rank's slices of states in codes
  const auto as_numbers = [&](int index, const StatePiece& piece) {
    if (!has_codes(*piece.state)) return piece;
    at::Tensor& numbers = decoded[piece.state];
    if (!numbers.defined()) numbers = numbers_of(store, bucket, *piece.state, Extent::slice);
    const int64_t begin = store.range_in_slice(index, store.rank()).begin;
    return StatePiece{piece.state, run_of(numbers, begin, piece.values.numel()), piece.begin};
  };
  store.for_each_chunk(bucket, /*changes=*/true, [&](int chunk) {
    std::vector<WantedElements> pieces;
    for (const int index : store.layout(bucket).parameters) {
      store.for_each_piece_of(chunk, index, [&](const StatePiece& piece) {
        if (is_read(index, *piece.state))
          pieces.push_back(wanted(index, source_of(index, *piece.state), as_numbers(index, piece)));
      });
    }
    saved_->read(pieces);
  });
  for (const auto& [state, numbers] : decoded) put_numbers(store, bucket, *state, Extent::slice, numbers);
}

std::string Restore::gradient_state() const {
  return saved_->manifest().window->is_summed ? kGradient : own_gradient_of(state_->mesh.world().rank());
}

void Restore::read_gradients(int parameter) {
  const std::string& name = names_.at(state_->buckets.parameters()[parameter].name);
  if (saved_->dtype_of(name, gradient_state()).empty()) return;  // the parameter has no gradient so far
  const int bucket = state_->buckets.bucket_of(parameter);
  const StateTensor& kept = state_->store.at(bucket, kGradient);
  const auto read = [&](const StatePiece& piece) {
    const WantedElements gradient = wanted(parameter, gradient_state(), piece);
    saved_->read({&gradient, 1});
  };
  if (!saved_->manifest().window->is_summed)
    return read({&kept, state_->buckets.piece(parameter, kept.memory), 0});
  state_->store.for_each_piece_of(0, parameter, [&](const StatePiece& piece) {
    if (piece.state->kind == StateKind::gradient) read(piece);
  });
}

void Restore::resume_window() const {
  const auto trained = state_->buckets.trained();
  const checkpoint::RestartValues& numbers = saved_->manifest().numbers[state_->mesh.world().rank()];
  WindowSoFar window{.has_gradient = std::vector<char>(trained.size()),
                     .arrivals = std::get<int64_t>(numbers.at(kWindowArrivals)),
                     .tally = std::get<std::vector<uint8_t>>(numbers.at(kWindowTally))};
  for (size_t index = 0; index < trained.size(); ++index) {
    const std::string& name = trained[index].name;
    window.has_gradient[index] =
        is_there(name) && !saved_->dtype_of(names_.at(name), gradient_state()).empty();
  }
  state_->reducer.resume_window(window);
  state_->held.resume(window);
  state_->progress.restored_counts().micro = saved_->manifest().window->micro_steps;
}

void Restore::check_counts(const checkpoint::Manifest& manifest) const {
  const StepCounts& counts = state_->progress.counts();
  const bool adds_up = counts.skipped >= 0 && counts.skipped <= counts.global &&
                       counts.applied() == manifest.generation && state_->optimizer->steps() >= 0;
  if (!adds_up) throw UserError("the checkpoint's step counts contradict each other");
}

std::string Restore::source_of_values(const std::string& parameter) const {
  return saved_->dtype_of(parameter, kMaster).empty() ? kValue : kMaster;
}

std::string Restore::source_of(int parameter, const StateTensor& state) const {
  const std::string& name = names_.at(state_->buckets.parameters()[parameter].name);
  const std::string source = state.kind == StateKind::moment ? state.name : source_of_values(name);
  if (!saved_->dtype_of(name, source).empty()) return source;
  throw UserError("the checkpoint has no " + source + " of " + name +
                  ": it was written with another optimizer; load with RestoreOptions::optimizer_states = "
                  "false and counters = false");
}

WantedElements Restore::wanted(int parameter, const std::string& source, const StatePiece& piece) const {
  const NamedParameter& own = state_->buckets.parameters()[parameter];
  const std::string& name = names_.at(own.name);
  return {.parameter = name,
          .state = source,
          .own = saved_parameter(own),
          .part = saved_part(*state_, parameter, piece.state->kind),
          .begin = piece.begin,
          .numel = piece.values.numel(),
          .put = put_into(piece.values, piece.begin, saved_->dtype_of(name, source))};
}

}  // namespace zerorun
