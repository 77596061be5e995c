#include "engine/checkpoints.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/manifest.h"
#include "checkpoint/publication.h"
#include "checkpoint/saved_state.h"
#include "engine/restart_items.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

constexpr const char* kModuleFile = "module.safetensors";

const char* spelled(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "F32";
    case at::kBFloat16:
      return "BF16";
    case at::kHalf:
      return "F16";
    case at::kDouble:
      return "F64";
    case at::kLong:
      return "I64";
    case at::kInt:
      return "I32";
    case at::kShort:
      return "I16";
    case at::kChar:
      return "I8";
    case at::kByte:
      return "U8";
    case at::kBool:
      return "BOOL";
    default:
      throw UserError(std::string("a buffer of dtype ") + c10::toString(dtype) +
                      " cannot be saved: convert it, or register it as not persistent");
  }
}

at::ScalarType dtype_of(const std::string& spelled_as) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kInt,
                                     at::kShort, at::kChar, at::kByte, at::kBool}) {
    if (spelled_as == spelled(dtype)) return dtype;
  }
  throw UserError("dtype \"" + spelled_as + "\" is not known");
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::span<std::byte> writable_bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// Each rank's text, on every rank.
std::vector<std::string> exchange(const std::string& text, Communicator& communicator,
                                  const std::string& label) {
  const int ranks = communicator.world_size();
  at::Tensor lengths = at::zeros({ranks}, at::kLong);
  int64_t* length = lengths.mutable_data_ptr<int64_t>();
  length[communicator.rank()] = static_cast<int64_t>(text.size());
  communicator.all_reduce(lengths, label)->wait();
  const int64_t longest = std::max<int64_t>(*std::max_element(length, length + ranks), 1);
  at::Tensor own = at::zeros({longest}, at::kByte);
  std::memcpy(own.mutable_data_ptr(), text.data(), text.size());
  at::Tensor all = at::zeros({ranks * longest}, at::kByte);
  communicator.all_gather(all, own, label)->wait();
  std::vector<std::string> texts;
  for (int rank = 0; rank < ranks; ++rank) {
    texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + rank * longest,
                       static_cast<size_t>(length[rank]));
  }
  return texts;
}

// What `action` throws on any rank every rank throws: that of the first, a UserError or else a TrainingError.
template <typename Action>
void on_all_ranks(Communicator& communicator, const std::string& label, const Action& action) {
  constexpr char kUsers = 'u';
  std::string failure;
  try {
    action();
  } catch (const UserError& error) {
    failure = kUsers + std::string(error.what());
  } catch (const std::exception& error) {
    failure = std::string("-") + error.what();
  }
  const std::vector<std::string> failures = exchange(failure, communicator, label);
  for (int rank = 0; rank < communicator.world_size(); ++rank) {
    if (failures[rank].empty()) continue;
    const std::string who = communicator.world_size() > 1 ? "rank " + std::to_string(rank) + ": " : "";
    if (failures[rank].front() == kUsers) throw UserError(who + failures[rank].substr(1));
    throw TrainingError(who + failures[rank].substr(1));
  }
}

// A rank's own tag would be a folder of its own.
void check_one_tag(const std::string& tag, Communicator& communicator) {
  const std::vector<std::string> tags = exchange(tag, communicator, "the checkpoint's tag");
  for (int rank = 1; rank < communicator.world_size(); ++rank) {
    if (tags[rank] == tags[0]) continue;
    throw UserError("ranks name different checkpoints: rank 0 \"" + tags[0] + "\", rank " +
                    std::to_string(rank) + " \"" + tags[rank] + "\": give save_checkpoint() the same tag");
  }
}

std::string name_of_file(int bucket, int rank) {
  std::string number = std::to_string(bucket);
  number.insert(0, 5 - std::min<size_t>(5, number.size()), '0');
  std::string of_rank = std::to_string(rank);
  of_rank.insert(0, 5 - std::min<size_t>(5, of_rank.size()), '0');
  return "bucket-" + number + "-rank-" + of_rank + ".safetensors";
}

// From here on the current stream may read and write every slice of this rank, as an update does. What the
// program has written is in them, and in the master weights.
void open_slices(EngineState& state, const std::string& label) {
  if (state.residency) {
    state.residency->finish_iteration();
    state.communicator->barrier(label)->wait();  // nobody reads parameters any more
    for (int bucket = 0; bucket < state.buckets.count(); ++bucket) state.residency->start_update(bucket);
  }
  state.buckets.follow_writes();
}

// `gathers`: the other ranks' slices are theirs to bring.
void close_slices(EngineState& state, bool gathers) {
  if (!state.residency) return;
  for (int bucket = 0; bucket < state.buckets.count(); ++bucket)
    state.residency->finish_update(bucket, gathers && state.communicator->world_size() > 1);
}

StateFileFacts write_bucket(EngineState& state, int bucket, const fs::path& folder, FileSystem& files) {
  const int rank = state.communicator->rank();
  const auto& parameters = state.buckets.parameters();
  std::vector<RangeToWrite> ranges;
  std::vector<at::Tensor> on_host;  // until they are written
  for (int parameter : state.buckets.layout(bucket).parameters) {
    state.store.for_each_piece(parameter, [&](const StatePiece& piece) {
      if (piece.state->kind == StateKind::gradient) return;
      const at::Tensor& values = on_host.emplace_back(piece.values.cpu());
      ranges.push_back({{.parameter = parameters[parameter].name,
                         .state = piece.state->name,
                         .dtype = spelled(values.scalar_type()),
                         .begin = piece.begin,
                         .numel = values.numel()},
                        bytes_of(values)});
    });
  }
  std::ranges::stable_sort(ranges, {}, [](const RangeToWrite& range) { return range.range.state; });
  const std::map<std::string, std::string> metadata = {
      {"format", "zerorun"},
      {"version", "1"},
      {"bucket", std::to_string(bucket)},
      {"rank", std::to_string(rank)},
      {"generation", std::to_string(state.counts.applied())}};
  return write_state_file(files, folder / name_of_file(bucket, rank), metadata, ranges);
}

// Buffers, and frozen parameters that every rank has whole.
StateFileFacts write_module(const EngineState& state, const fs::path& folder, FileSystem& files) {
  std::vector<RangeToWrite> ranges;
  std::vector<at::Tensor> on_host;
  for (const auto& [name, tensor, dtype] : state.others) {
    const at::Tensor& values = on_host.emplace_back(tensor.detach().cpu().contiguous());
    ranges.push_back({{.parameter = name,
                       .state = kValue,
                       .dtype = spelled(values.scalar_type()),
                       .begin = 0,
                       .numel = values.numel()},
                      bytes_of(values)});
  }
  return write_state_file(files, folder / kModuleFile, {{"format", "zerorun"}, {"version", "1"}}, ranges);
}

std::map<std::string, SavedParameter> saved_parameters(const EngineState& state) {
  std::map<std::string, SavedParameter> saved;
  for (const auto& [name, tensor, group] : state.buckets.parameters()) {
    saved[name] = {
        .shape = tensor.sizes().vec(), .strides = tensor.strides().vec(), .trained = group != kFrozen};
  }
  for (const auto& [name, tensor, dtype] : state.others) {
    saved[name] = {.shape = tensor.sizes().vec(),
                   .strides = at::empty(tensor.sizes(), at::kByte).strides().vec(),
                   .trained = false};
  }
  return saved;
}

RestartValues numbers_of(EngineState& state) {
  RestartValues numbers;
  for (const RestartItem& item : restart_items(state)) numbers[item.name] = item.read();
  return numbers;
}

Manifest start_manifest(const EngineState& state, const std::string& tag, const std::string& client_state) {
  return {.tag = tag,
          .generation = state.counts.applied(),
          .world_size = state.communicator->world_size(),
          .stage = state.config.zero.stage,
          .precision = name_of(state.config.precision.training),
          .optimizer = state.optimizer_name,
          .parameters = saved_parameters(state),
          .files = {},
          .numbers = {},
          .client_state = client_state};
}

}  // namespace

fs::path save_checkpoint(EngineState& state, const fs::path& directory, const std::string& given_tag,
                         const CheckpointOptions& options, FileSystem& files) {
  c10::NoGradGuard no_grad;
  state.settle();
  const std::string tag = given_tag.empty() ? "global_step" + std::to_string(state.counts.global) : given_tag;
  Communicator& communicator = *state.communicator;
  const int rank = communicator.rank();
  const std::string label = "saving checkpoint " + tag;
  check_one_tag(tag, communicator);
  on_all_ranks(communicator, label, [&] {
    state.follow_schedule();
    state.check_between_windows("save_checkpoint");
    check_tag(tag);
    if (rank == 0) check_json(options.client_state, "CheckpointOptions::client_state");
  });
  open_slices(state, label);
  close_slices(state, !state.policy.replicate_update);

  std::optional<Publication> publication;  // rank 0's
  on_all_ranks(communicator, label, [&] {
    if (rank == 0) publication.emplace(files, directory, tag);
  });
  const fs::path folder = partial_folder(directory, tag);
  std::string part;
  on_all_ranks(communicator, label, [&] {
    std::map<std::string, StateFileFacts> written;
    for (int bucket = 0; bucket < state.buckets.count(); ++bucket)
      written[name_of_file(bucket, rank)] = write_bucket(state, bucket, folder, files);
    if (rank == 0) written[kModuleFile] = write_module(state, folder, files);
    part = to_json(written, numbers_of(state));
  });
  const std::vector<std::string> parts = exchange(part, communicator, label);
  on_all_ranks(communicator, label, [&] {
    if (rank != 0) return;
    Manifest manifest = start_manifest(state, tag, options.client_state);
    for (const std::string& of_rank : parts) add_part(manifest, of_rank, label);
    publication->publish(to_json(manifest), options.save_latest);
  });
  return directory / tag;
}

namespace {

class Restore {
 public:
  Restore(EngineState& state, SavedState& saved, const RestoreOptions& options)
      : state_(&state), saved_(&saved), options_(options) {}

  /// Throws UserError where the engine's optimizer cannot take over what is there.
  void check_optimizer() const {
    const std::string& saved = saved_->manifest().optimizer;
    if (options_.optimizer_states && saved != state_->optimizer_name) {
      throw UserError(
          "the checkpoint's optimizer is " + saved + ", and this engine's is " + state_->optimizer_name +
          ": name the same one, or load with RestoreOptions::optimizer_states = false and counters = "
          "false");
    }
    const int64_t steps = state_->optimizer->steps();
    if (!options_.optimizer_states && steps > 0) {
      throw UserError(
          "RestoreOptions::optimizer_states = false starts the optimizer anew, and this engine's has taken " +
          std::to_string(steps) + " steps: load into an engine that has taken none");
    }
  }

  /// Throws UserError where the model is not the checkpoint's.
  void check_model() const {
    const auto& saved = saved_->manifest().parameters;
    const auto wanted = saved_parameters(*state_);
    std::string differences;
    for (const auto& [name, parameter] : wanted) {
      const auto found = saved.find(name);
      if (found == saved.end()) {
        if (options_.strict)
          differences += "\n  " + name + c10::str(" ", parameter.shape, " is not in the checkpoint");
      } else if (found->second.shape != parameter.shape || !same_strides(found->second, parameter)) {
        differences +=
            "\n  " + name +
            c10::str(" is ", parameter.shape, " with strides ", parameter.strides, " here, and ",
                     found->second.shape, " with strides ", found->second.strides, " in the checkpoint");
      }
    }
    for (const auto& [name, parameter] : saved) {
      if (options_.strict && !wanted.contains(name)) {
        differences += "\n  " + name + c10::str(" ", parameter.shape, " is in the checkpoint only");
      }
    }
    if (differences.empty()) return;
    throw UserError("the checkpoint is of another model:" + differences +
                    "\nbuild the model as it was, or load with RestoreOptions::strict = false, which leaves "
                    "what only one side has (shapes must agree)");
  }

  /// This rank's slices.
  void read_slices() {
    const auto& parameters = state_->buckets.parameters();
    for (int index = 0; index < static_cast<int>(parameters.size()); ++index) {
      if (!saved_->manifest().parameters.contains(parameters[index].name)) continue;
      const bool has_master = state_->buckets.has_master(state_->buckets.bucket_of(index));
      state_->store.for_each_piece(index, [&](const StatePiece& piece) {
        if (piece.state->kind == StateKind::gradient) return;
        if (piece.state->kind == StateKind::moment && !options_.optimizer_states) return;
        read(parameters[index].name, source_of(parameters[index].name, *piece.state, has_master), piece);
      });
    }
  }

  /// Those of whole tensors that other ranks have read. A collective.
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

  /// Buffers and frozen parameters that every rank has whole: rank 0 reads them for all.
  void read_module() const {
    for (const auto& [name, tensor, dtype] : state_->others) {
      if (tensor.numel() == 0 || !saved_->manifest().parameters.contains(name)) continue;
      const std::string source = saved_->dtype_of(name, kMaster).empty() ? kValue : kMaster;
      at::Tensor values = at::empty(tensor.sizes(), dtype_of(saved_->dtype_of(name, source)));
      saved_->read(name, source, 0, values.numel(), writable_bytes_of(values));
      tensor.detach().copy_(values);
    }
  }

  /// Step counts, learning rates, loss scale, generators: as far as the options want them.
  void restore_numbers() const {
    const Manifest& manifest = saved_->manifest();
    const bool same_ranks = manifest.world_size == state_->communicator->world_size();
    const bool same_precision = manifest.precision == name_of(state_->config.precision.training);
    for (const RestartItem& item : restart_items(*state_)) {
      const bool is_generator = item.name.starts_with("generator.");
      // Moments go with the steps that they are of.
      const bool wanted = item.name == "steps.optimizer" ? options_.optimizer_states : options_.counters;
      if (!wanted || (is_generator && !same_ranks)) continue;
      const RestartValues& numbers = manifest.numbers[is_generator ? state_->communicator->rank() : 0];
      const auto found = numbers.find(item.name);
      if (found != numbers.end()) {
        if (found->second.index() != item.read().index()) {
          throw UserError("the checkpoint's \"" + item.name + "\" is of another kind");
        }
        item.write(found->second);
      } else if (same_precision && !is_generator) {  // another device has another generator
        throw UserError(
            "the checkpoint has no \"" + item.name +
            "\": it was written with other parameter groups; load with RestoreOptions::counters = "
            "false");
      }
    }
    if (!options_.counters) return;
    check_counts(manifest);
    // At the start of a window, however many micro-steps those of the writer had.
    state_->counts.micro = state_->counts.global * state_->config.batch.gradient_accumulation_steps;
    state_->schedule.ask(state_->counts.applied());
  }

 private:
  // Of dimensions of one element, or of none, they mean nothing.
  static bool same_strides(const SavedParameter& a, const SavedParameter& b) {
    for (size_t dim = 0; dim < a.shape.size(); ++dim) {
      if (a.shape[dim] == 0) return true;
    }
    for (size_t dim = 0; dim < a.shape.size(); ++dim) {
      if (a.shape[dim] != 1 && a.strides.at(dim) != b.strides.at(dim)) return false;
    }
    return true;
  }

  void check_counts(const Manifest& manifest) const {
    const StepCounts& counts = state_->counts;
    const bool adds_up = counts.skipped >= 0 && counts.skipped <= counts.global &&
                         counts.applied() == manifest.generation && state_->optimizer->steps() >= 0;
    if (!adds_up) throw UserError("the checkpoint's step counts contradict each other");
  }

  // Values of 16-bit training are rounded master weights, and those of fp32 training master weights.
  std::string source_of(const std::string& parameter, const StateTensor& kept, bool has_master) const {
    const bool is_exact = kept.kind == StateKind::master || (kept.kind == StateKind::value && !has_master);
    if (kept.kind == StateKind::moment) return kept.name;
    const bool has_exact = !saved_->dtype_of(parameter, kMaster).empty();
    return has_exact && (is_exact || has_master) ? kMaster : kValue;
  }

  void read(const std::string& parameter, const std::string& source, const StatePiece& piece) {
    const std::string dtype = saved_->dtype_of(parameter, source);
    if (dtype.empty()) {
      throw UserError("the checkpoint has no " + source + " of " + parameter +
                      ": it was written with another optimizer; load with RestoreOptions::optimizer_states = "
                      "false and counters = false");
    }
    at::Tensor values = at::empty({piece.values.numel()}, dtype_of(dtype));
    saved_->read(parameter, source, piece.begin, values.numel(), writable_bytes_of(values));
    at::Tensor(piece.values).copy_(values);
  }

  EngineState* state_;
  SavedState* saved_;
  RestoreOptions options_;
};

std::string tag_to_load(const fs::path& directory, const std::string& tag, FileSystem& files) {
  if (!tag.empty()) return tag;
  if (const auto latest = latest_tag(files, directory)) return *latest;
  std::string there;
  for (const std::string& published : published_tags(files, directory)) there += " " + published;
  throw UserError(directory.string() + " has no file \"latest\", which names the checkpoint to load" +
                  (there.empty() ? ", and no checkpoint" : "; name one of these:" + there));
}

}  // namespace

RestoredCheckpoint load_checkpoint(EngineState& state, const fs::path& directory, const std::string& tag,
                                   const RestoreOptions& options, FileSystem& files) {
  c10::NoGradGuard no_grad;
  state.settle();
  Communicator& communicator = *state.communicator;
  const std::string label = "loading a checkpoint from " + directory.string();
  std::string chosen;
  on_all_ranks(communicator, label, [&] {
    state.check_between_windows("load_checkpoint");
    if (communicator.rank() == 0) chosen = tag_to_load(directory, tag, files);
  });
  chosen = exchange(chosen, communicator, label).front();
  const fs::path folder = directory / chosen;
  std::optional<SavedState> saved;
  std::optional<Restore> restore;
  on_all_ranks(communicator, label, [&] {
    saved.emplace(files, folder);
    restore.emplace(state, *saved, options);
    restore->check_optimizer();
    restore->check_model();
  });

  open_slices(state, label);
  std::exception_ptr failure;
  try {
    restore->read_slices();
    if (communicator.rank() == 0) restore->read_module();
  } catch (...) {
    failure = std::current_exception();
  }
  restore->gather_slices();
  close_slices(state, /*gathers=*/true);
  // Where every rank has all, raw access goes on.
  if (state.policy.replicate_update && state.residency) state.residency->finish_iteration();
  for (const NamedTensor& other : state.others) broadcast_tensor(other, 0, communicator);
  state.buckets.bump_versions();
  on_all_ranks(communicator, label, [&] {
    if (failure) std::rethrow_exception(failure);
    restore->restore_numbers();
  });
  return {.path = folder, .client_state = saved->manifest().client_state};
}

}  // namespace zerorun
