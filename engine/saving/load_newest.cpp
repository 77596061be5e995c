// Engine::load_newest(): finds the checkpoint that was saved last and is whole, before anything is restored.
#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file_path.h"
#include "base/log.h"
#include "checkpoint/publication.h"
#include "checkpoint/verification.h"
#include "comm/agreement.h"
#include "engine/saving/checkpoints.h"

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

Findings verify(EngineState& state, const fs::path& folder, checkpoint::FileSystem& files) {
  // Ranks of a host without a folder in common with other hosts read all files that they have.
  const bool has_own = state.config.node_local_checkpoints;
  const Communicator& ranks = state.mesh.world();
  const checkpoint::VerifiedPart part{.first = has_own ? 0 : ranks.rank(),
                                      .every = has_own ? 1 : ranks.world_size(),
                                      .may_be_missing = has_own};
  try {
    const checkpoint::Verification found = checkpoint::verify_checkpoint(files, folder, part);
    if (!found.passed()) return {describe(folder, found.damages.front())};
    return {"", found.manifest_checksum};
  } catch (const UserError& error) {  // the manifest
    return {error.what()};
  }
}

// Says which rank finds the tag damaged, and why; empty if all ranks find it whole. The same on all ranks.
std::string damage_of(EngineState& state, const fs::path& folder, checkpoint::FileSystem& files,
                      const std::string& label) {
  Communicator& communicator = state.mesh.world();
  Findings own;
  on_all_ranks(communicator, label, [&] { own = verify(state, folder, files); });
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

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, kBetween);) parts.push_back(part);
  return parts;
}

}  // namespace

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
  std::string damage;
  for (const std::string& tag : tags) {
    damage = damage_of(state, directory / tag, files, label);
    if (damage.empty()) return load_checkpoint(state, directory, tag, options, files);
    if (communicator.rank() == 0) log_warning("a checkpoint is damaged and passed over: " + damage);
  }
  if (tags.empty()) return std::nullopt;
  throw UserError(directory.string() + ": all " + std::to_string(tags.size()) +
                  " checkpoints are damaged, the last one so: " + damage +
                  ": copy back a whole one, or give an empty folder to begin anew");
}

}  // namespace zerorun
