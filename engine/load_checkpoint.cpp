#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/publication.h"
#include "checkpoint/saved_state.h"
#include "comm/agreement.h"
#include "engine/checkpoint_contents.h"
#include "engine/checkpoints.h"
#include "engine/restart_items.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

std::span<std::byte> writable_bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

class Restore {
 public:
  Restore(EngineState& state, checkpoint::SavedState& saved, const RestoreOptions& options)
      : state_(&state), saved_(&saved), options_(options) {
    for (const auto& [name, parameter] : saved.manifest().parameters) {
      names_[name] = name;
      for (const std::string& alias : parameter.aliases) names_.emplace(alias, name);
    }
  }

  /// Throws UserError if the engine's optimizer cannot take over the checkpoint's state.
  void check_optimizer() const {
    const std::string& saved = saved_->manifest().optimizer;
    if (options_.optimizer_states && saved != state_->optimizer_name) {
      throw UserError(
          "the checkpoint's optimizer is " + saved + ", and this engine's is " + state_->optimizer_name +
          ": use the same one, or load with RestoreOptions::optimizer_states = false and counters = false");
    }
    const int64_t steps = state_->optimizer->steps();
    if (!options_.optimizer_states && steps > 0) {
      throw UserError(
          "RestoreOptions::optimizer_states = false needs a new optimizer, but this engine's has taken " +
          std::to_string(steps) + " steps: load into an engine that has taken none");
    }
  }

  /// Throws UserError if the model differs from the model in the checkpoint.
  void check_model() const {
    const auto& saved = saved_->manifest().parameters;
    std::set<std::string> wanted;
    std::string differences;
    for (const auto& [name, parameter] : saved_parameters(*state_)) {
      const auto there = names_.find(name);
      if (there == names_.end()) {
        if (options_.strict)
          differences += "\n  " + name + c10::str(" ", parameter.shape, " is not in the checkpoint");
        continue;
      }
      const auto found = saved.find(there->second);
      wanted.insert(found->first);
      if (found->second.shape != parameter.shape ||
          !(same_strides(found->second, parameter) || is_dense(found->second))) {
        differences +=
            "\n  " + name +
            c10::str(" is ", parameter.shape, " with strides ", parameter.strides, " here, and ",
                     found->second.shape, " with strides ", found->second.strides, " in the checkpoint");
      }
    }
    for (const auto& [name, parameter] : saved) {
      if (options_.strict && !wanted.contains(name)) {
        differences += "\n  " + name + c10::str(" ", parameter.shape, " is only in the checkpoint");
      }
    }
    if (differences.empty()) return;
    throw UserError("the checkpoint is from another model:" + differences +
                    "\nbuild the model as it was, or load with RestoreOptions::strict = false, which ignores "
                    "entries that only one side has (shapes must agree)");
  }

  /// Throws UserError if parameters are in other groups than in the checkpoint: rates and betas belong to
  /// groups.
  void check_groups() const {
    if (!options_.counters) return;
    for (const auto& [name, parameter] : saved_parameters(*state_)) {
      const auto there = names_.find(name);
      if (there == names_.end() || parameter.group < 0) continue;
      const int64_t saved = saved_->manifest().parameters.at(there->second).group;
      if (saved < 0 || saved == parameter.group) continue;
      throw UserError(c10::str("the checkpoint was written with other parameter groups: ", name,
                               " is in group ", saved, " there, and in group ", parameter.group,
                               " here: give the same groups in the same order, or load with "
                               "RestoreOptions::counters = false"));
    }
  }

  /// Throws UserError if the checkpoint has gradients that this engine cannot continue with.
  void check_window() const {
    if (!has_window()) return;
    const checkpoint::Manifest& manifest = saved_->manifest();
    const checkpoint::SavedWindow& saved = *manifest.window;
    const checkpoint::SavedWindow own = saved_window(*state_);
    std::string differences;
    auto compare = [&](const char* what, const auto& theirs, const auto& ours) {
      if (theirs != ours) differences += c10::str("\n  ", what, " ", theirs, " there, ", ours, " here");
    };
    compare("ranks:", manifest.world_size, state_->communicator->world_size());
    compare("gradient_accumulation_steps:", saved.accumulation_steps, own.accumulation_steps);
    compare("gradients summed over ranks with each micro-step (stages 2 and 3):", saved.is_summed,
            own.is_summed);
    compare("precision:", manifest.precision, std::string(name_of(state_->config.precision.training)));
    compare("dtype of gradients in collectives:", saved.communication, own.communication);
    compare("dtype of gradients:", saved.dtype, own.dtype);
    compare("factor of gradients:", saved.factor, own.factor);
    if (state_->scaler && state_->scaler->is_fixed())  // else the checkpoint's is restored
      compare("loss scale (fp16.loss_scale):", saved.loss_scale, state_->loss_scale());
    if (differences.empty()) return;
    throw UserError(
        "the checkpoint was saved between the micro-steps of an optimizer step, and its gradients do not fit "
        "this training:" +
        differences + "\nload it with the same settings, or load one that was saved after an optimizer step");
  }

  /// Reads this rank's slices.
  void read_slices() {
    if (has_window()) {
      for (int bucket = 0; bucket < state_->buckets.trained_count(); ++bucket)
        state_->communicator->device().zero(state_->store.at(bucket, kGradient).memory);
    }
    for (int bucket = 0; bucket < state_->buckets.count(); ++bucket)
      state_->store.with_values(bucket, ValueUse::change, [&] { read_slice(bucket); });
    state_->store.finish_generation();
  }

  /// Gathers the slices that other ranks have read, for states that this rank keeps in full. A collective.
  void gather_slices() const {
    if (state_->communicator->world_size() == 1) return;
    state_->store.for_each([&](int bucket, const StateTensor& kept) {
      const bool by_residency = kept.kind == StateKind::value && state_->residency;
      if (kept.extent == Extent::slice || kept.kind == StateKind::gradient || by_residency) return;
      state_->communicator
          ->all_gather(kept.memory, kept.own, kept.name + " of " + state_->buckets.label(bucket))
          ->wait();
    });
  }

  /// Called on rank 0: reads the buffers and the frozen parameters that every rank has in full.
  void read_module() const {
    for (const auto& [name, tensor, dtype, is_buffer] : state_->unbucketed) {
      if (tensor.numel() == 0 || !is_there(name)) continue;
      const std::string source = source_of_values(names_.at(name));
      tensor.detach().copy_(read_whole(names_.at(name), source));
    }
  }

  /// Restores step counts, learning rates, loss scale and generators, as the options say.
  void restore_numbers() const {
    const checkpoint::Manifest& manifest = saved_->manifest();
    const bool same_ranks = manifest.world_size == state_->communicator->world_size();
    const bool same_precision = manifest.precision == name_of(state_->config.precision.training);
    for (const RestartItem& item : restart_items(*state_)) {
      const bool is_generator = item.name.starts_with("generator.");
      // The optimizer's step count belongs to its moments, so optimizer_states decides about both.
      const bool wanted = item.name == "steps.optimizer" ? options_.optimizer_states : options_.counters;
      if (!wanted || (is_generator && !same_ranks)) continue;
      const checkpoint::RestartValues& numbers =
          manifest.numbers[is_generator ? state_->communicator->rank() : 0];
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
    state_->counts.micro = state_->counts.drops = 0;
    if (has_window()) resume_window();
    state_->schedule.resume(state_->counts.applied());
    state_->schedule.ask(state_->counts.applied());
  }

 private:
  bool is_there(const std::string& parameter) const {
    const auto found = names_.find(parameter);
    return found != names_.end() && !saved_->manifest().parameters.at(found->second).excluded;
  }

  // A parameter that was frozen in the checkpoint and is trained now keeps the moments that it has here.
  bool has_moments(const std::string& parameter) const {
    return options_.optimizer_states && saved_->manifest().parameters.at(names_.at(parameter)).trained;
  }

  bool has_window() const { return options_.counters && saved_->manifest().window; }

  // Reads a slice's states in the order in which they are in a checkpoint file, so each block is read once.
  void read_slice(int bucket) {
    const auto& parameters = state_->buckets.parameters();
    for (const int index : state_->buckets.layout(bucket).parameters) {
      if (has_window() && parameters[index].group != kFrozen && is_there(parameters[index].name))
        read_gradients(index);
    }
    state_->store.for_each_chunk(bucket, /*changes=*/true, [&](int chunk) {
      std::vector<std::pair<int, StatePiece>> pieces;
      for (const int index : state_->buckets.layout(bucket).parameters) {
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
        read(name, is_moment ? piece.state->name : source_of_values(name), parameters[index].tensor, piece);
      }
    });
  }

  std::string gradient_state() const {
    return saved_->manifest().window->is_summed ? kGradient : own_gradient_of(state_->communicator->rank());
  }

  void read_gradients(int parameter) {
    const at::Tensor& own = state_->buckets.parameters()[parameter].tensor;
    const std::string& name = names_.at(state_->buckets.parameters()[parameter].name);
    if (saved_->dtype_of(name, gradient_state()).empty()) return;  // the parameter has no gradient so far
    const int bucket = state_->buckets.bucket_of(parameter);
    const StateTensor& kept = state_->store.at(bucket, kGradient);
    if (!saved_->manifest().window->is_summed) {
      read(name, gradient_state(), own, {&kept, state_->buckets.piece(parameter, kept.memory), 0});
      return;
    }
    state_->store.for_each_piece_of(0, parameter, [&](const StatePiece& piece) {
      if (piece.state->kind == StateKind::gradient) read(name, kGradient, own, piece);
    });
  }

  void resume_window() const {
    const auto trained = state_->buckets.trained();
    const checkpoint::RestartValues& numbers = saved_->manifest().numbers[state_->communicator->rank()];
    WindowSoFar window{.has_gradient = std::vector<char>(trained.size()),
                       .arrivals = std::get<int64_t>(numbers.at(kWindowArrivals)),
                       .tally = std::get<std::vector<uint8_t>>(numbers.at(kWindowTally))};
    for (size_t index = 0; index < trained.size(); ++index) {
      const std::string& name = trained[index].name;
      window.has_gradient[index] =
          is_there(name) && !saved_->dtype_of(names_.at(name), gradient_state()).empty();
    }
    state_->reducer.resume_window(window);
    state_->holds_gradients = true;
    if (state_->marks) state_->marks->place(window.has_gradient);
    state_->counts.micro = saved_->manifest().window->micro_steps;
  }

  // Ignores strides of dimensions of size 1, and all strides of an empty tensor.
  static bool same_strides(const checkpoint::SavedParameter& a, const checkpoint::SavedParameter& b) {
    for (size_t dim = 0; dim < a.shape.size(); ++dim) {
      if (a.shape[dim] == 0) return true;
    }
    for (size_t dim = 0; dim < a.shape.size(); ++dim) {
      if (a.shape[dim] != 1 && a.strides.at(dim) != b.strides.at(dim)) return false;
    }
    return true;
  }

  // Whether each place in memory belongs to one element: only then the strides tell the order of the
  // elements.
  static bool is_dense(const checkpoint::SavedParameter& parameter) {
    return at::empty_strided(parameter.shape, parameter.strides,
                             at::TensorOptions(at::kMeta).dtype(at::kByte))
        .is_non_overlapping_and_dense();
  }

  // Returns the parameter with its strides of the checkpoint.
  at::Tensor read_whole(const std::string& parameter, const std::string& source) const {
    const checkpoint::SavedParameter& saved = saved_->manifest().parameters.at(parameter);
    at::Tensor values =
        at::empty_strided(saved.shape, saved.strides, dtype_of(saved_->dtype_of(parameter, source)));
    const int64_t numel = values.numel();
    saved_->read(parameter, source, 0, numel,
                 {static_cast<std::byte*>(values.mutable_data_ptr()),
                  static_cast<size_t>(numel) * values.element_size()});
    return values;
  }

  void check_counts(const checkpoint::Manifest& manifest) const {
    const StepCounts& counts = state_->counts;
    const bool adds_up = counts.skipped >= 0 && counts.skipped <= counts.global &&
                         counts.applied() == manifest.generation && state_->optimizer->steps() >= 0;
    if (!adds_up) throw UserError("the checkpoint's step counts contradict each other");
  }

  // Prefers master weights, because 16-bit values are rounded. Without master weights (fp32 training) the
  // values are exact.
  std::string source_of_values(const std::string& parameter) const {
    return saved_->dtype_of(parameter, kMaster).empty() ? kValue : kMaster;
  }

  // `own`: the engine's parameter.
  void read(const std::string& parameter, const std::string& source, const at::Tensor& own,
            const StatePiece& piece) {
    const std::string dtype = saved_->dtype_of(parameter, source);
    if (dtype.empty()) {
      throw UserError("the checkpoint has no " + source + " of " + parameter +
                      ": it was written with another optimizer; load with RestoreOptions::optimizer_states = "
                      "false and counters = false");
    }
    const int64_t numel = piece.values.numel();
    const checkpoint::SavedParameter& saved = saved_->manifest().parameters.at(parameter);
    const at::IntArrayRef strides = own.strides();
    if (!same_strides(saved, {.shape = saved.shape, .strides = strides.vec()})) {
      // The elements lie in another order here: take this rank's from the whole parameter.
      const at::Tensor whole = at::empty_strided(own.sizes(), strides, dtype_of(dtype));
      whole.copy_(read_whole(parameter, source));
      at::Tensor(piece.values).copy_(whole.as_strided({numel}, {1}, piece.begin));
      return;
    }
    at::Tensor values = at::empty({numel}, dtype_of(dtype));
    saved_->read(parameter, source, piece.begin, numel, writable_bytes_of(values));
    at::Tensor(piece.values).copy_(values);
  }

  EngineState* state_;
  checkpoint::SavedState* saved_;
  RestoreOptions options_;
  std::map<std::string, std::string> names_;  // from a name or alias to the name in the checkpoint
};

constexpr const char* kItself = ".";  // no tag has this name

// Returns kItself if `directory` is the folder of a checkpoint.
std::string tag_to_load(const fs::path& directory, const std::string& tag, checkpoint::FileSystem& files) {
  if (!tag.empty()) return tag;
  if (checkpoint::is_checkpoint(files, directory)) return kItself;
  const auto latest = checkpoint::latest_tag(files, directory);
  if (latest && files.list(directory / *latest)) return *latest;
  if (!files.list(directory)) throw UserError(directory.string() + ": there is no such folder");
  std::string there;
  for (const std::string& published : checkpoint::published_tags(files, directory)) there += " " + published;
  throw UserError(directory.string() +
                  (latest ? ": the file \"latest\" names " + *latest + ", which is not there"
                          : " has no file \"latest\", which names the checkpoint to load") +
                  (there.empty() ? ", and no checkpoint" : "; name one of these:" + there));
}

// All that must be the same on all ranks, as text.
std::string words_of_load(const fs::path& directory, const std::string& tag, const RestoreOptions& options) {
  const auto without = [](bool given, const char* what) {
    return given ? "" : std::string(", without ") + what;
  };
  return (tag.empty() ? "the latest checkpoint" : "\"" + tag + "\"") + " of " + directory.string() +
         without(options.optimizer_states, "optimizer states") + without(options.counters, "counters") +
         without(options.strict, "strict");
}

void check_same_words(const std::string& words, Communicator& communicator, const std::string& label) {
  const auto all = exchange_texts(words, communicator, label);
  for (int rank = 1; rank < communicator.world_size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw UserError("ranks load different checkpoints: rank 0 " + all[0] + "; rank " + std::to_string(rank) +
                    " " + all[rank] + ": give load_checkpoint() the same arguments on all ranks");
  }
}

// Hosts without a common folder may have different checkpoints under the same name.
void check_same_everywhere(const checkpoint::Manifest& manifest, const fs::path& folder,
                           Communicator& communicator) {
  const std::string own = std::to_string(std::hash<std::string>()(to_json(manifest)));
  const auto all = exchange_texts(own, communicator, "comparing manifests");
  for (int rank = 1; rank < communicator.world_size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw UserError(folder.string() + ": rank " + std::to_string(rank) +
                    " sees another checkpoint there than rank 0: copy one to all hosts, or load from a "
                    "folder that they share");
  }
}

}  // namespace

RestoredCheckpoint load_checkpoint(EngineState& state, const fs::path& directory, const std::string& tag,
                                   const RestoreOptions& options, checkpoint::FileSystem& files) {
  c10::NoGradGuard no_grad;
  state.finish_open_step();
  state.checkpoints.finish();
  state.checkpoints.forget_published();
  Communicator& communicator = *state.communicator;
  const std::string label = "loading a checkpoint from " + directory.string();
  check_same_words(words_of_load(directory, tag, options), communicator, label);
  std::string chosen;
  on_all_ranks(communicator, label, [&] {
    state.follow_marks("engine.load_checkpoint");
    state.check_states_are_here("load_checkpoint");
    state.check_between_steps("load_checkpoint");
    state.optimizer->follow_program();
    if (state.holds_gradients) {
      throw UserError(
          "engine.load_checkpoint() between the micro-steps of an optimizer step, whose gradients would be "
          "lost: call it after a step() that completes one (is_gradient_accumulation_boundary() is true "
          "before it), or drop them with engine.zero_grad()");
    }
    if (communicator.rank() == 0) chosen = tag_to_load(directory, tag, files);
  });
  chosen = exchange_texts(chosen, communicator, label).front();
  const fs::path folder = chosen == kItself ? directory : directory / chosen;
  std::optional<checkpoint::SavedState> saved;
  std::optional<Restore> restore;
  on_all_ranks(communicator, label, [&] {
    saved.emplace(files, folder);
    restore.emplace(state, *saved, options);
    restore->check_optimizer();
    restore->check_model();
    restore->check_groups();
    restore->check_window();
  });
  check_same_everywhere(saved->manifest(), folder, communicator);

  open_slices(state, state.residency != nullptr, label);
  if (state.host_update) state.host_update->await_arrival();
  std::exception_ptr failure;
  try {
    restore->read_slices();
    if (communicator.rank() == 0) restore->read_module();
  } catch (...) {
    failure = std::current_exception();
  }
  restore->gather_slices();
  if (state.residency) close_slices(state, /*gathers=*/communicator.world_size() > 1);
  // At stage 0 raw access to parameters is always allowed, so wait for the gathers here.
  if (state.policy.replicate_update && state.residency) state.residency->finish_iteration();
  for (const NamedTensor& other : state.unbucketed) broadcast_tensor(other, 0, communicator);
  state.buckets.bump_versions();
  on_all_ranks(communicator, label, [&] {
    if (failure) std::rethrow_exception(failure);
    restore->restore_numbers();
  });
  Streams& streams = communicator.device().streams();
  Event loaded;
  streams.record(loaded, streams.current());
  streams.await(loaded, communicator.timeout(), label);
  return {.path = folder, .client_state = saved->manifest().client_state};
}

}  // namespace zerorun
