#include "engine/saving/held_places.h"

#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/publication.h"

namespace zerorun {

HeldPlaces::HeldPlaces(const Communicator& ranks)
    : memory_(open_held_memory()), rank_(ranks.rank()), world_size_(ranks.world_size()) {
  is_named_ = std::getenv(kHeldMemoryVariable) != nullptr;
  const char* token = std::getenv("ZERORUN_JOB");
  for (const HeldKeeper& keeper : memory_.keepers)
    clients_.push_back(std::make_unique<HeldClient>(keeper, token == nullptr ? "" : token));
}

std::string HeldPlaces::problem() const {
  if (memory_.ranks.empty()) return "the launcher's memory (--hold_every) cannot be opened";
  if (std::ssize(memory_.ranks) != world_size_) {
    return "the launcher has memory for " + std::to_string(memory_.ranks.size()) +
           " ranks, and the job has another number";
  }
  if (!is_here(rank_)) return "the launcher's memory for this rank is on another host";
  return {};
}

HeldSlots* HeldPlaces::own() {
  return problem().empty() ? &memory_.ranks[static_cast<size_t>(rank_)] : nullptr;
}

bool HeldPlaces::is_here(int rank) const {
  return memory_.ranks[static_cast<size_t>(rank)].front().is_open();
}

HeldSlot HeldPlaces::slot(int rank, int number) const {
  if (is_here(rank))
    return {.descriptor = memory_.ranks[static_cast<size_t>(rank)][static_cast<size_t>(number)].get()};
  size_t host = 0;
  while (rank >= memory_.keepers[host].first_rank + memory_.keepers[host].ranks) ++host;
  return {.descriptor = -1, .keeper = clients_[host].get(), .rank = rank, .slot = number};
}

checkpoint::HeldGeneration HeldPlaces::find(int rank, const std::string& run, const std::string& attempt,
                                            int64_t step) const {
  for (const int number : {0, 1}) {
    auto found = checkpoint::read_generation(slot(rank, number));
    if (found && found->run == run && found->attempt == attempt && found->step == step)
      return std::move(*found);
  }
  throw UserError("rank " + std::to_string(rank) + " has it no more");
}

std::unique_ptr<checkpoint::HeldFiles> HeldPlaces::files_of(const std::string& run,
                                                            const std::string& attempt, int64_t step) const {
  auto files = std::make_unique<checkpoint::HeldFiles>();
  try {
    checkpoint::Manifest manifest;
    for (int rank = 0; rank < world_size_; ++rank) {
      const checkpoint::HeldGeneration generation = find(rank, run, attempt, step);
      if (!generation.manifest.empty()) {
        manifest = checkpoint::parse_manifest(generation.manifest, kHeldFolder);
        manifest.numbers.clear();
      }
      checkpoint::add_part(manifest, generation.part, kHeldFolder);
      for (const auto& [file, place] : generation.places) files->add(file, place);
    }
    files->add(checkpoint::kManifestName, checkpoint::to_json(manifest));
  } catch (const std::exception& error) {
    log_warning("rank " + std::to_string(rank_) + ": the generation of step " + std::to_string(step) +
                " in memory cannot be read: " + error.what());
  }
  return files;
}

checkpoint::VerifiedPart HeldPlaces::part_to_verify() const {
  if (clients_.empty()) return {.first = rank_, .every = world_size_};
  int64_t before = 0, here = 0;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!is_here(rank)) continue;
    ++here;
    if (rank < rank_) ++before;
  }
  return {.first = before, .every = here, .may_be_missing = true};
}

void HeldPlaces::disconnect() {
  for (const auto& client : clients_) client->disconnect();
}

}  // namespace zerorun
