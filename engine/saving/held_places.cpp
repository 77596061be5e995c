#include "engine/saving/held_places.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/publication.h"
#include "comm/agreement.h"

namespace zerorun {
namespace {

constexpr int64_t kCopyBytes = 4 << 20;  // at a time

}  // namespace

HeldPlaces::HeldPlaces(const Communicator& ranks)
    : memory_(open_held_memory()), rank_(ranks.rank()), world_size_(ranks.world_size()) {
  is_named_ = std::getenv(kHeldMemoryVariable) != nullptr;
  const char* token = std::getenv("ZERORUN_JOB");
  for (const HeldKeeper& keeper : memory_.keepers)
    clients_.push_back(std::make_unique<HeldClient>(keeper, token == nullptr ? "" : token));
  for (int rank = 0; rank < std::ssize(memory_.ranks);) {
    const auto there = std::ranges::find(memory_.keepers, rank, &HeldKeeper::first_rank);
    int ranks = 0;
    if (there == memory_.keepers.end()) {
      while (rank + ranks < std::ssize(memory_.ranks) && is_here(rank + ranks)) ++ranks;
      hosts_.push_back({rank, ranks, nullptr});
    } else {
      ranks = there->ranks;
      hosts_.push_back({rank, ranks, clients_[static_cast<size_t>(there - memory_.keepers.begin())].get()});
    }
    rank += ranks;
  }
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

size_t HeldPlaces::host_of(int rank) const {
  size_t host = 0;
  while (rank >= hosts_[host].first_rank + hosts_[host].ranks) ++host;
  return host;
}

HeldSlot HeldPlaces::slot(int rank, int number) const {
  if (is_here(rank))
    return {.descriptor = memory_.ranks[static_cast<size_t>(rank)][static_cast<size_t>(number)].get()};
  const Host& host = hosts_[host_of(rank)];
  return {.descriptor = -1, .keeper = host.keeper, .rank = rank - host.first_rank, .slot = number};
}

HeldSlot HeldPlaces::copy(int rank, int number) const {
  const size_t host = host_of(rank);
  const Host& next = hosts_[next_host(host)];
  const int place = rank - hosts_[host].first_rank;
  if (next.keeper == nullptr)
    return {.descriptor = memory_.copies[static_cast<size_t>(place)][static_cast<size_t>(number)].get()};
  return {.descriptor = -1, .keeper = next.keeper, .rank = place, .slot = kOwnSlots + number};
}

void HeldPlaces::use_copies() {
  if (hosts_.size() < 2) return;
  for (const Host& host : hosts_) {
    if (host.ranks == hosts_.front().ranks) continue;
    throw UserError(
        "zerorun.restart.partner: each host has copies of the ranks of the one before it, but rank " +
        std::to_string(host.first_rank) + "'s host has " + std::to_string(host.ranks) +
        " ranks and rank 0's host " + std::to_string(hosts_.front().ranks) +
        ": give all hosts equally many ranks, or set it to false");
  }
  uses_copies_ = makes_copies_ = std::ssize(memory_.copies) == hosts_.front().ranks;
}

int64_t HeldPlaces::bytes_wanted(const std::vector<int64_t>& bytes) const {
  int64_t wanted = 0;
  const auto add = [&](const HeldSlot& slot, int rank) {
    if (slot.descriptor < 0) return;
    struct stat status {};
    ::fstat(slot.descriptor, &status);
    wanted += bytes[static_cast<size_t>(rank)] - 512 * int64_t{status.st_blocks};
  };
  for (int rank = 0; rank < world_size_; ++rank) {
    for (const int number : {0, 1}) {
      add(slot(rank, number), rank);
      if (uses_copies_) add(copy(rank, number), rank);
    }
  }
  return wanted;
}

bool HeldPlaces::has(const HeldSlot& slot, const std::string& run, const std::string& attempt, int64_t step) {
  try {
    const auto there = checkpoint::read_generation(slot);
    return there && there->run == run && there->attempt == attempt && there->step == step;
  } catch (const std::exception&) {
    return false;
  }
}

std::array<HeldSlot, 2> HeldPlaces::sources() const {
  bool is_used = !uses_copies_;
  for (const int number : {0, 1}) is_used = is_used || checkpoint::was_used(slot(rank_, number).descriptor);
  if (is_used) return {slot(rank_, 0), slot(rank_, 1)};
  return {own_copy(0), own_copy(1)};
}

// Without the next host this rank's own generations go on.
void HeldPlaces::stop_copies(const std::string& reason) {
  makes_copies_ = false;
  log_warning("zerorun.restart.partner: from now on rank " + std::to_string(rank_) +
              "'s generations are not copied to the next host: " + reason);
}

template <typename Action>
void HeldPlaces::with_copies(const Action& action) {
  if (!makes_copies_) return;
  if (const Failure failure = failure_of(action)) stop_copies(failure.text);
}

void HeldPlaces::reserve_copy(int number, int64_t bytes) {
  if (!makes_copies_) return;
  const HeldSlot there = own_copy(number);
  try {
    there.keeper->reserve(there.rank, there.slot, bytes);
  } catch (const CommError& error) {
    stop_copies(error.what());
  }
}

void HeldPlaces::free(int number) {
  [[maybe_unused]] const int ignored = ::ftruncate(own_file(number), 0);
  with_copies([&] {
    const HeldSlot there = own_copy(number);
    there.keeper->reserve(there.rank, there.slot, 0);
  });
}

void HeldPlaces::write_copy(int number, std::span<const std::byte> bytes, int64_t offset) {
  const HeldSlot there = own_copy(number);
  there.keeper->write(there.rank, there.slot, bytes, offset);
}

void HeldPlaces::clear(int number) {
  checkpoint::clear_generation(own_file(number));
  const std::vector<std::byte> nothing(checkpoint::kHeldBegin);
  with_copies([&] { write_copy(number, nothing, 0); });
}

void HeldPlaces::send_copy(int number, int64_t bytes, int64_t begin) {
  const HeldSlot own = slot(rank_, number);
  std::vector<std::byte> buffer(kCopyBytes);
  const auto send = [&](int64_t offset, int64_t end) {
    while (offset < end) {
      const auto piece = std::span(buffer).first(static_cast<size_t>(std::min(kCopyBytes, end - offset)));
      const int64_t size = own.read(piece, offset);
      if (size <= 0) throw Error("the generation to copy is shorter than it was");
      write_copy(number, piece.first(static_cast<size_t>(size)), offset);
      offset += size;
    }
  };
  with_copies([&] {
    write_copy(number, std::span(buffer).first(checkpoint::kHeldBegin), 0);  // of zeros: no generation
    send(begin, bytes);
    send(0, checkpoint::kHeldBegin);
  });
}

void HeldPlaces::fetch_copy(int number) {
  const HeldSlot there = own_copy(number);
  const int own = own_file(number);
  std::vector<std::byte> buffer(kCopyBytes);
  const auto fetch = [&](int64_t offset, int64_t most) {
    const int64_t size = there.read(std::span(buffer).first(static_cast<size_t>(most)), offset);
    for (int64_t done = 0; done < size;) {
      const ssize_t written =
          ::pwrite(own, buffer.data() + done, static_cast<size_t>(size - done), offset + done);
      if (written <= 0)
        throw Error(std::string("the system gives no memory for it: ") + std::strerror(errno));
      done += written;
    }
    return size;
  };
  with_copies([&] {
    // A file that was never used stays so until its first page is there: until then the copy counts.
    if (checkpoint::was_used(own)) checkpoint::clear_generation(own);
    for (int64_t offset = checkpoint::kHeldBegin, size = 1; size > 0; offset += size)
      size = fetch(offset, kCopyBytes);
    fetch(0, checkpoint::kHeldBegin);
  });
}

checkpoint::HeldGeneration HeldPlaces::find(int rank, const std::string& run, const std::string& attempt,
                                            int64_t step) const {
  std::string damage;
  for (const bool is_copy : {false, true}) {
    for (const int number : {0, 1}) {
      if (is_copy && !uses_copies_) continue;
      try {
        auto found = checkpoint::read_generation(is_copy ? copy(rank, number) : slot(rank, number));
        if (found && found->run == run && found->attempt == attempt && found->step == step)
          return std::move(*found);
      } catch (const UserError& error) {  // of this file; another one may have it
        damage = std::string(": ") + error.what();
      }
    }
  }
  throw UserError("rank " + std::to_string(rank) + " has it no more" + damage);
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
