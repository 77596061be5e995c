#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/file_path.h"
#include "checkpoint/checksums.h"
#include "checkpoint/json_text.h"
#include "checkpoint/publication.h"
#include "comm/agreement.h"
#include "engine/replica_checks.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/saving/checkpoint_part.h"
#include "engine/saving/checkpoints.h"
#include "engine/saving/client_tensors.h"
#include "engine/saving/save_checks.h"
#include "engine/tensor_checks.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

std::string tag_of(const EngineState& state, const std::string& given) {
  if (!given.empty()) return given;
  const int64_t micro_steps = state.progress.counts().micro;
  return checkpoint::kStepTag + std::to_string(state.progress.counts().global) +
         (micro_steps > 0 ? "_micro" + std::to_string(micro_steps) : "");
}

// The program may change its working folder during the save.
fs::path whole_path(const fs::path& directory) {
  std::error_code error;
  fs::path whole = fs::absolute(directory, error);
  if (!error) return whole;
  throw UserError(directory.string() + ": the program's working folder cannot be found (" + error.message() +
                  "): give save_checkpoint() an absolute path");
}

// All that must be the same on all ranks, as text.
std::string words_of(const EngineState& state, const fs::path& directory, const std::string& tag,
                     const CheckpointOptions& options) {
  const HeldSince& held = state.held.held_since();
  return "\"" + tag + "\" in " + directory.string() + " after step " +
         std::to_string(state.progress.counts().global) + " and " +
         std::to_string(state.progress.counts().micro) + " micro-steps" +
         (held.dropped
              ? ", gradients dropped (zero_grad()) in micro-step " + std::to_string(held.micro_step + 1) +
                    " before its last " + std::to_string(held.after) + " backwards"
              : "") +
         (options.exclude_frozen ? ", without frozen parameters" : "");
}

// If `check` throws on any rank, throws that error on all ranks; throws UserError if words() differs between
// ranks. Returns whether a rank has writes to parameters that other ranks lack. Takes one collective if there
// is no error. Once a rank has returned, no rank reads parameters until save_checkpoint() is done.
template <typename Check, typename Words>
bool agree_to_save(EngineState& state, const Check& check, const Words& words_now) {
  Communicator& communicator = state.mesh.world();
  const std::string label = "saving a checkpoint";
  const Failure failure = failure_of(check);
  const std::string words = words_now();
  constexpr uint64_t kWrites = 1;  // lowest bit: this rank has writes that other ranks lack
  constexpr uint64_t kFine = 2;    // next bit: `check` has not failed
  at::Tensor votes = at::zeros({communicator.world_size()}, at::kLong);
  int64_t* by_rank = votes.mutable_data_ptr<int64_t>();
  const bool has_writes = state.residency && state.residency->has_pending_writes();
  if (!failure)
    by_rank[communicator.rank()] = static_cast<int64_t>(
        checkpoint::checksum_of(std::as_bytes(std::span(words))) << 2 | kFine | has_writes);
  communicator.all_reduce(votes, label)->wait();
  const std::span<const int64_t> all(by_rank, static_cast<size_t>(communicator.world_size()));
  const auto word_bits = [](int64_t word) { return static_cast<uint64_t>(word) & ~kWrites; };
  if (!std::ranges::all_of(all,
                           [&](int64_t word) { return word != 0 && word_bits(word) == word_bits(all[0]); })) {
    raise_first(exchange_texts(failure.encoded(), communicator, label));
    const auto all_words = exchange_texts(words, communicator, label);
    for (int rank = 1; rank < communicator.world_size(); ++rank) {
      if (all_words[rank] == all_words[0]) continue;
      throw UserError("ranks save different checkpoints: rank 0 " + all_words[0] + "; rank " +
                      std::to_string(rank) + " " + all_words[rank] +
                      ": give save_checkpoint() the same arguments at the same time");
    }
  }
  return std::ranges::any_of(all, [](int64_t word) { return (static_cast<uint64_t>(word) & kWrites) != 0; });
}

}  // namespace

fs::path save_checkpoint(EngineState& state, const fs::path& directory, const std::string& given_tag,
                         const CheckpointOptions& options) {
  c10::NoGradGuard no_grad;
  state.check_knows_parts("engine.save_checkpoint");
  state.finish_open_step();
  state.checkpoints.finish();
  state.held_generations.begin_save(state);
  const std::string tag = tag_of(state, given_tag);
  CheckpointPart part;
  const auto check = [&] {
    state.follow_schedule();
    state.check_between_steps("engine.save_checkpoint");
    state.check_states_are_here("save_checkpoint");
    if (state.progress.counts().micro > 0 && state.mesh.has_replicas()) {
      throw UserError(
          "engine.save_checkpoint() between the micro-steps of an optimizer step, on a mesh with replicas "
          "(zerorun.mesh.replicate), whose gradients are summed only at its end: call it after a step() that "
          "completes one");
    }
    if (state.progress.counts().micro > 0) state.reducer.check_window_is_stored();
    check_path(directory, "", "save_checkpoint");
    checkpoint::check_tag(tag);
    part.directory = whole_path(directory);
    state.optimizer->follow_program();
    check_names_and_dtypes(state, "save_checkpoint");
    check_numbers(state, "save_checkpoint");
    if (state.mesh.world().rank() > 0) return;
    checkpoint::check_json(options.client_state, "CheckpointOptions::client_state");
    check_client_tensors(options.client_tensors);
  };
  const bool shares = agree_to_save(state, check, [&] { return words_of(state, directory, tag, options); });
  check_whole_values(state, "engine.save_checkpoint");
  const bool opens = state.residency && (shares || state.mesh.data().device().streams().asynchronous());
  open_slices(state, opens, "writes before a checkpoint");
  const auto close = [&] {
    if (opens) close_slices(state, /*gathers=*/shares && !state.policy.replicate_update);
  };
  const Failure drifted = failure_of([&] { check_replicas_agree(state, "engine.save_checkpoint"); });
  if (drifted) close();
  drifted.raise();
  part.save_latest = options.save_latest;
  part.keep_last = options.keep_last;
  part.node_local = state.config.node_local_checkpoints;
  part.failure = failure_of([&] { fill_part(state, tag, options, ReadTime::later, part); });
  if (part.failure) {
    part.files.clear();
    part.manifest.tag = tag;
    part.pinned.resize(static_cast<size_t>(state.store.count()));
  }
  close();
  state.checkpoints.start(std::move(part));
  if (!options.asynchronous) state.checkpoints.wait();
  return directory / tag;
}

}  // namespace zerorun
