// Engine::load_newest(): finds the checkpoint that was saved last and is whole, before anything is restored.
#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/file_path.h"
#include "base/log.h"
#include "checkpoint/publication.h"
#include "checkpoint/saved_state.h"
#include "checkpoint/verification.h"
#include "comm/agreement.h"
#include "engine/saving/checkpoints.h"
#include "engine/saving/held_generations.h"
#include "engine/saving/held_places.h"
#include "engine/saving/restart_items.h"

namespace zerorun {
namespace fs = std::filesystem;
namespace {

constexpr char kBetween = '/';  // no tag has it

// What this rank found in its part of a tag's files.
struct Findings {
  std::string damage;  // empty: none
  std::string manifest_checksum = {};
};

std::string describe(const fs::path& folder, const checkpoint::Damage& damage) {
  return (damage.file.empty() ? folder : folder / damage.file).string() + ": " +
         (damage.block < 0 ? "" : "MiB " + std::to_string(damage.block) + " ") + damage.what;
}

// Of a checkpoint on disk. Ranks of a host without a folder in common with other hosts read all files that
// they have.
checkpoint::VerifiedPart part_on_disk(const EngineState& state) {
  const bool has_own = state.config.node_local_checkpoints;
  const Communicator& ranks = state.mesh.world();
  return {.first = has_own ? 0 : ranks.rank(),
          .every = has_own ? 1 : ranks.world_size(),
          .may_be_missing = has_own};
}

Findings verify(const checkpoint::VerifiedPart& part, const fs::path& folder, checkpoint::FileSystem& files) {
  try {
    const checkpoint::Verification found = checkpoint::verify_checkpoint(files, folder, part);
    if (!found.passed()) return {describe(folder, found.damages.front())};
    return {"", found.manifest_checksum};
  } catch (const UserError& error) {  // the manifest
    return {error.what()};
  }
}

// Says which rank finds the tag damaged, and why; empty if all ranks find it whole. The same on all ranks.
std::string damage_of(Communicator& communicator, const checkpoint::VerifiedPart& part,
                      const fs::path& folder, checkpoint::FileSystem& files, const std::string& label) {
  Findings own;
  on_all_ranks(communicator, label, [&] { own = verify(part, folder, files); });
  const std::vector<std::string> damages = exchange_texts(own.damage, communicator, label);
  const std::vector<std::string> manifests = exchange_texts(own.manifest_checksum, communicator, label);
  for (int rank = 0; rank < communicator.world_size(); ++rank) {
    const auto place = static_cast<size_t>(rank);
    const std::string who = communicator.world_size() > 1 ? "rank " + std::to_string(rank) + ": " : "";
    if (!damages[place].empty()) return who + damages[place];
    if (damages[0].empty() && manifests[place] != manifests[0])
      return who + folder.string() + " is another checkpoint there than on rank 0";
  }
  return {};
}

// Why a whole checkpoint does not fit: it was saved between micro-steps, by other ranks or with another
// accumulation, as when hosts are left out or come back. Empty if it fits, or if its manifest cannot be read.
std::string misfit_of(const EngineState& state, const fs::path& folder, checkpoint::FileSystem& files) {
  std::string misfit;
  failure_of([&] {
    const checkpoint::SavedState saved(files, folder);
    const checkpoint::Manifest& manifest = saved.manifest();
    const int ranks = state.mesh.world().world_size();
    const int64_t steps = state.config.batch.gradient_accumulation_steps;
    if (!manifest.window || (manifest.world_size == ranks && manifest.window->accumulation_steps == steps))
      return;
    misfit = folder.string() + " was saved between the micro-steps of a step, by " +
             std::to_string(manifest.world_size) + " ranks with gradient_accumulation_steps " +
             std::to_string(manifest.window->accumulation_steps) + "; here " + std::to_string(ranks) +
             " and " + std::to_string(steps);
  });
  return misfit;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, kBetween);) parts.push_back(part);
  return parts;
}

// Optimizer steps before the checkpoint; more than any if its manifest cannot be read, which damage_of()
// says.
int64_t steps_of(const fs::path& folder, checkpoint::FileSystem& files) {
  int64_t steps = std::numeric_limits<int64_t>::max();
  failure_of([&] {
    const checkpoint::SavedState saved(files, folder);
    steps = std::get<int64_t>(saved.manifest().numbers.front().at(kStepsItem));
  });
  return steps;
}

// A checkpoint or a generation in memory.
struct Candidate {
  fs::path directory;
  std::string tag;
  checkpoint::FileSystem* files;
  const HeldGenerations::Found* held = nullptr;  // null: a checkpoint
};

// `held`: the newest first, before which a checkpoint comes that has at least as many steps. The same on all
// ranks.
std::vector<Candidate> candidates(EngineState& state, const fs::path& directory,
                                  checkpoint::FileSystem& files, const std::vector<std::string>& tags,
                                  const std::vector<HeldGenerations::Found>& held) {
  std::string order;  // for each of `tags` how many of `held` come before it
  if (state.mesh.world().rank() == 0 && !held.empty()) {
    size_t before = 0;
    for (const std::string& tag : tags) {
      const int64_t steps = steps_of(directory / tag, files);
      while (before < held.size() && held[before].step > steps) ++before;
      order += std::to_string(before) + kBetween;
    }
  }
  if (!held.empty()) order = exchange_texts(order, state.mesh.world(), "ordering checkpoints").front();
  const std::vector<std::string> places = split(order);
  std::vector<Candidate> all;
  size_t next = 0;
  const auto add_held = [&](size_t end) {
    for (; next < end; ++next)
      all.push_back({kHeldFolder, held[next].tag, held[next].files.get(), &held[next]});
  };
  for (size_t tag = 0; tag < tags.size(); ++tag) {
    if (!places.empty()) add_held(std::stoull(places[tag]));
    all.push_back({directory, tags[tag], &files});
  }
  add_held(held.size());
  return all;
}

// Says what was restored, where ranks hold generations in memory.
void log_choice(const EngineState& state, const Candidate& chosen) {
  if (!state.held_generations.has_memory() || state.mesh.world().rank() > 0) return;
  log_info("load_newest(): " + (chosen.held ? "step " + std::to_string(chosen.held->step) + " from memory"
                                            : (chosen.directory / chosen.tag).string()));
}

std::string why_none_is_held(const RestoreOptions& options, const RestoredCheckpoint& restored) {
  if (!options.from_memory || !options.optimizer_states || !options.counters)
    return "load_newest() was told to restore a part";
  return why_not_held({.client_state = restored.client_state, .client_tensors = restored.client_tensors},
                      options.client_state != nullptr);
}

}  // namespace

std::string why_not_held(const CheckpointOptions& options, bool gives_client_state) {
  const std::string& text = options.client_state;
  const bool has_none = options.client_tensors.empty() && (text.empty() || text == "null" || text == "{}");
  if (gives_client_state || has_none) return {};
  return "the program saves a client_state: give load_newest() a function that tells it "
         "(RestoreOptions::client_state)";
}

std::optional<RestoredCheckpoint> load_newest(EngineState& state, const fs::path& directory,
                                              const RestoreOptions& options, checkpoint::FileSystem& files) {
  state.finish_open_step();
  state.checkpoints.finish();
  Communicator& communicator = state.mesh.world();
  const std::string label = "looking for a checkpoint in " + directory.string();
  check_same_words("the newest checkpoint of " + directory.string(), communicator, "load_newest()");
  std::string list;
  on_all_ranks(communicator, label, [&] {
    check_path(directory, "", "load_newest");
    if (communicator.rank() > 0) return;
    for (const std::string& tag : checkpoint::tags_by_age(files, directory)) list += tag + kBetween;
  });
  const std::vector<std::string> tags = split(exchange_texts(list, communicator, label).front());
  HeldGenerations& generations = state.held_generations;
  const std::vector<HeldGenerations::Found> held =
      generations.find(state, directory, why_none_is_held(options, {}));
  std::string damage;
  for (const Candidate& one : candidates(state, directory, files, tags, held)) {
    const fs::path folder = one.directory / one.tag;
    const std::string misfit = communicator.rank() == 0 ? misfit_of(state, folder, *one.files) : "";
    damage = exchange_texts(misfit, communicator, label).front();
    if (!damage.empty()) {
      if (communicator.rank() == 0) log_warning("a checkpoint is passed over: " + damage);
      continue;
    }
    damage = damage_of(communicator, one.held ? generations.part_to_verify() : part_on_disk(state), folder,
                       *one.files, label);
    if (damage.empty()) {
      RestoredCheckpoint restored = load_checkpoint(state, one.directory, one.tag, options, *one.files);
      log_choice(state, one);
      generations.start(state, one.held, why_none_is_held(options, restored), options);
      return restored;
    }
    if (communicator.rank() == 0) log_warning("a checkpoint is damaged and passed over: " + damage);
  }
  if (tags.empty()) {
    generations.start(state, nullptr, why_none_is_held(options, {}), options);
    return std::nullopt;
  }
  throw UserError(directory.string() + ": all " + std::to_string(tags.size()) +
                  " checkpoints are damaged or do not fit, the last one so: " + damage +
                  ": copy back a whole one, or give an empty folder to begin anew");
}

}  // namespace zerorun
