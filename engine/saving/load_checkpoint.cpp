#include <c10/core/GradMode.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/file_path.h"
#include "base/memory_report.h"
#include "checkpoint/publication.h"
#include "checkpoint/saved_state.h"
#include "comm/agreement.h"
#include "engine/model_broadcast.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/saving/checkpoints.h"
#include "engine/saving/client_tensors.h"
#include "engine/saving/restore.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

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

// Hosts without a common folder may have different checkpoints under the same name.
void check_same_everywhere(const checkpoint::Manifest& manifest, const fs::path& folder,
                           Communicator& communicator) {
  const auto all = exchange_texts(manifest.checksum, communicator, "comparing manifests");
  for (int rank = 1; rank < communicator.world_size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw UserError(folder.string() + ": rank " + std::to_string(rank) +
                    " sees another checkpoint there than rank 0: copy one to all hosts, or load from a "
                    "folder that they share");
  }
}

}  // namespace

void check_same_words(const std::string& words, Communicator& communicator, const std::string& label) {
  const auto all = exchange_texts(words, communicator, label);
  for (int rank = 1; rank < communicator.world_size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw UserError("ranks load different checkpoints: rank 0 " + all[0] + "; rank " + std::to_string(rank) +
                    " " + all[rank] + ": call it with the same arguments on all ranks");
  }
}

RestoredCheckpoint load_checkpoint(EngineState& state, const fs::path& directory, const std::string& tag,
                                   const RestoreOptions& options, checkpoint::FileSystem& files) {
  const AllocatingFor scope(MemoryUse::checkpoint);
  c10::NoGradGuard no_grad;
  state.check_knows_parts("engine.load_checkpoint");
  state.finish_open_step();
  state.checkpoints.finish();
  state.checkpoints.frozen().forget_all();
  Communicator& communicator = state.mesh.world();
  check_outside_backward("engine.load_checkpoint");
  if (state.held.has_failed_backward()) state.reducer.finish_abandoned();
  const std::string label = "loading a checkpoint from " + directory.string();
  check_same_words(words_of_load(directory, tag, options), communicator, label);
  std::string chosen;
  on_all_ranks(communicator, label, [&] {
    check_path(directory, tag, "load_checkpoint");
    state.check_between_steps("engine.load_checkpoint");
    state.check_states_are_here("load_checkpoint");
    state.optimizer->follow_program();
    if (state.held.any()) {
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
    restore->check();
  });
  check_same_everywhere(saved->manifest(), folder, communicator);
  ClientTensors client_tensors = read_client_tensors(files, folder, saved->manifest(), communicator);

  open_slices(state, state.residency != nullptr, label);
  if (state.host_update) state.host_update->await_arrival();
  std::exception_ptr failure;
  try {
    restore->read_slices();
    if (writes_others(state)) restore->read_module();
  } catch (...) {
    failure = std::current_exception();
  }
  restore->gather_slices();
  if (state.residency) close_slices(state, /*gathers=*/state.mesh.shards().world_size() > 1);
  // At stage 0 raw access to parameters is always allowed, so wait for the gathers here.
  if (state.policy.replicate_update && state.residency) state.residency->finish_iteration();
  for (const NamedTensor& other : state.unbucketed) {
    if (state.mesh.sizes().tensor > 1 && state.mesh.data().rank() == 0)
      broadcast_tensor(other, 0, state.mesh.along(MeshAxis::tensor));
    broadcast_tensor(other, 0, state.mesh.data());
  }
  state.buckets.bump_versions();
  on_all_ranks(communicator, label, [&] {
    if (failure) std::rethrow_exception(failure);
    restore->restore_numbers();
  });
  Streams& streams = communicator.device().streams();
  Event loaded;
  streams.record(loaded, streams.current());
  streams.await(loaded, communicator.timeout(), label);
  return {.path = folder,
          .client_state = saved->manifest().client_state,
          .client_tensors = std::move(client_tensors)};
}

}  // namespace zerorun
