#include "engine/saving/restore.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/saving/restart_items.h"

namespace zerorun {
namespace {

std::span<std::byte> writable_bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
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
  for (int bucket = 0; bucket < state_->store.count(); ++bucket)
    state_->store.with_values(bucket, ValueUse::change, [&] { read_slice(bucket); });
  state_->store.finish_generation();
}

void Restore::gather_slices() const {
  if (state_->mesh.data().world_size() == 1) return;
  state_->store.for_each([&](int bucket, const StateTensor& kept) {
    const bool by_residency = kept.kind == StateKind::value && state_->residency;
    if (kept.extent == Extent::slice || kept.kind == StateKind::gradient || by_residency) return;
    state_->mesh.data()
        .all_gather(kept.memory, kept.own, kept.name + " of " + state_->buckets.label(bucket))
        ->wait();
  });
}

void Restore::read_module() const {
  for (const auto& [name, tensor, dtype, is_buffer, tied] : state_->unbucketed) {
    if (tensor.numel() == 0 || !is_there(name)) continue;
    const std::string source = source_of_values(names_.at(name));
    tensor.detach().copy_(read_joined(names_.at(name), source));
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
    } else if (same_precision && !is_generator) {  // a CPU run's checkpoint has no GPU generator
      throw UserError(
          "the checkpoint has no \"" + item.name +
          "\": it was written with other parameter groups; load with RestoreOptions::counters = false");
    }
  }
  if (!options_.counters) return;
  check_counts(manifest);
  // Starts a new window, unless the checkpoint was saved within a window, which is then continued.
  state_->progress.restored_counts().micro = 0;
  state_->held.forget_drops();
  if (has_window()) resume_window();
  state_->schedule.resume(state_->progress.counts().applied());
  state_->schedule.ask(state_->progress.counts().applied());
}

bool Restore::is_there(const std::string& parameter) const {
  const auto found = names_.find(parameter);
  return found != names_.end() && !saved_->manifest().parameters.at(found->second).excluded;
}

bool Restore::has_moments(const std::string& parameter) const {
  return options_.optimizer_states && saved_->manifest().parameters.at(names_.at(parameter)).trained;
}

void Restore::read_slice(int bucket) {
  const auto& parameters = state_->buckets.parameters();
  for (const int index : state_->store.layout(bucket).parameters) {
    if (has_window() && parameters[index].group != kFrozen && is_there(parameters[index].name))
      read_gradients(index);
  }
  state_->store.for_each_chunk(bucket, /*changes=*/true, [&](int chunk) {
    std::vector<std::pair<int, StatePiece>> pieces;
    for (const int index : state_->store.layout(bucket).parameters) {
      if (!is_there(parameters[index].name)) continue;
      state_->store.for_each_piece_of(chunk, index, [&](const StatePiece& piece) {
        if (piece.state->kind == StateKind::gradient) return;
        if (piece.state->kind == StateKind::moment && !has_moments(parameters[index].name)) return;
        pieces.emplace_back(index, piece);
      });
    }
    std::ranges::stable_sort(pieces, {}, [](const auto& piece) { return piece.second.state->name; });
    for (const auto& [index, piece] : pieces) {
      const std::string& name = names_.at(parameters[index].name);
      const bool is_moment = piece.state->kind == StateKind::moment;
      read(index, is_moment ? piece.state->name : source_of_values(name), piece);
    }
  });
}

std::string Restore::gradient_state() const {
  return saved_->manifest().window->is_summed ? kGradient : own_gradient_of(state_->mesh.world().rank());
}

void Restore::read_gradients(int parameter) {
  const std::string& name = names_.at(state_->buckets.parameters()[parameter].name);
  if (saved_->dtype_of(name, gradient_state()).empty()) return;  // the parameter has no gradient so far
  const int bucket = state_->buckets.bucket_of(parameter);
  const StateTensor& kept = state_->store.at(bucket, kGradient);
  if (!saved_->manifest().window->is_summed) {
    read(parameter, gradient_state(), {&kept, state_->buckets.piece(parameter, kept.memory), 0});
    return;
  }
  state_->store.for_each_piece_of(0, parameter, [&](const StatePiece& piece) {
    if (piece.state->kind == StateKind::gradient) read(parameter, kGradient, piece);
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

at::Tensor Restore::read_whole(const std::string& parameter, const std::string& source, int part) const {
  const checkpoint::SavedParameter saved = part_of(saved_->manifest().parameters.at(parameter), part);
  at::Tensor values =
      at::empty_strided(saved.shape, saved.strides, dtype_of(saved_->dtype_of(parameter, source)));
  const int64_t numel = values.numel();
  saved_->read(parameter, source, 0, numel,
               {static_cast<std::byte*>(values.mutable_data_ptr()),
                static_cast<size_t>(numel) * values.element_size()},
               part);
  return values;
}

at::Tensor Restore::read_joined(const std::string& parameter, const std::string& source) const {
  const checkpoint::SavedParameter& saved = saved_->manifest().parameters.at(parameter);
  if (!saved.split) return read_whole(parameter, source);
  const at::Tensor whole =
      at::empty_strided(saved.shape, saved.strides, dtype_of(saved_->dtype_of(parameter, source)));
  for (size_t part = 0; part < saved.split->parts.size(); ++part) {
    const at::Tensor values = read_whole(parameter, source, static_cast<int>(part));
    int64_t begin = 0;
    for (const auto& interval : saved.split->parts[part]) {
      whole.narrow(saved.split->dim, interval.begin, interval.numel)
          .copy_(values.narrow(saved.split->dim, begin, interval.numel));
      begin += interval.numel;
    }
  }
  return whole;
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

void Restore::read(int parameter, const std::string& source, const StatePiece& piece) {
  const at::Tensor& own = state_->buckets.parameters()[parameter].tensor;
  const std::string& name = names_.at(state_->buckets.parameters()[parameter].name);
  const std::string dtype = saved_->dtype_of(name, source);
  if (dtype.empty()) {
    throw UserError("the checkpoint has no " + source + " of " + name +
                    ": it was written with another optimizer; load with RestoreOptions::optimizer_states = "
                    "false and counters = false");
  }
  const NamedParameter& target = state_->buckets.parameters()[parameter];
  const int64_t numel = piece.values.numel();
  const at::IntArrayRef strides = own.strides();
  const auto take_from = [&](const at::Tensor& values) {
    const at::Tensor placed = at::empty_strided(own.sizes(), strides, values.scalar_type());
    placed.copy_(values);
    at::Tensor(piece.values).copy_(placed.as_strided({numel}, {1}, piece.begin));
  };
  if (saved_->manifest().parameters.at(name).split != saved_parameter(target).split) {
    const at::Tensor whole = read_joined(name, source);
    if (!target.split) return take_from(whole);
    const at::Tensor part = at::empty(own.sizes(), whole.options());
    copy_part(part, whole, *target.split, state_->mesh.coordinates().tensor);
    return take_from(part);
  }
  const int part = saved_part(*state_, parameter, piece.state->kind);
  const checkpoint::SavedParameter saved = part_of(saved_->manifest().parameters.at(name), part);
  // If the elements lie in another order here, takes this rank's from all of them.
  if (!same_strides(saved, {.shape = saved.shape, .strides = strides.vec()}))
    return take_from(read_whole(name, source, part));
  at::Tensor values = at::empty({numel}, dtype_of(dtype));
  saved_->read(name, source, piece.begin, numel, writable_bytes_of(values), part);
  at::Tensor(piece.values).copy_(values);
}

}  // namespace zerorun
