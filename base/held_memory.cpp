#include "base/held_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <utility>

#include "base/memory_file.h"

namespace zerorun {
namespace {

constexpr char kHeldFile[] = "zerorun held state ";  // and the tag
constexpr char kKeeperWord[] = "keeper";

// Each rank takes two open files of the owner.
constexpr int kMostHeldRanks = 128;
constexpr int kMostRanksInText = 1 << 20;

// Reads behind the words "memory" and "copies". False if it is none.
bool read_own(std::istringstream& text, std::vector<HeldSlots>& ranks) {
  std::string tag;
  int count = 0;
  if (!(text >> tag >> count) || count < 1 || count > kMostHeldRanks) return false;
  for (std::string first, second; count > 0 && text >> first >> second; --count) {
    const std::string name = kHeldFile + tag + " ";  // the system adds " (deleted)"
    HeldSlots slots = {open_memory_file(first.c_str(), name.c_str()),
                       open_memory_file(second.c_str(), name.c_str())};
    if (!slots[0].is_open() || !slots[1].is_open()) return false;
    ranks.push_back(std::move(slots));
  }
  return count == 0;
}

bool read_keeper(std::istringstream& text, OpenHeldMemory& memory) {
  HeldKeeper keeper;
  keeper.first_rank = static_cast<int>(std::ssize(memory.ranks));
  if (!(text >> keeper.host >> keeper.address >> keeper.port >> keeper.ranks) || keeper.ranks < 1 ||
      keeper.ranks > kMostRanksInText)
    return false;
  memory.ranks.resize(memory.ranks.size() + static_cast<size_t>(keeper.ranks));
  memory.keepers.push_back(std::move(keeper));
  return true;
}

}  // namespace

HeldMemory::HeldMemory(int ranks, std::string tag) : tag_(std::move(tag)) {
  if (ranks > kMostHeldRanks) return;
  for (int rank = 0; rank < ranks; ++rank) {
    HeldSlots& slots = ranks_.emplace_back();
    for (UniqueFd& slot : slots) {
      slot = UniqueFd(::memfd_create((kHeldFile + tag_).c_str(), MFD_CLOEXEC));
      if (slot.is_open()) continue;
      ranks_.clear();
      return;
    }
  }
}

std::string HeldMemory::place(const char* word) const {
  if (ranks_.empty()) return {};
  std::ostringstream text;
  text << word << ' ' << tag_ << ' ' << ranks_.size();
  for (const HeldSlots& slots : ranks_) {
    for (const UniqueFd& slot : slots) text << " /proc/" << ::getpid() << "/fd/" << slot.get();
  }
  return text.str();
}

std::string HeldMemory::text(int64_t every) const {
  return ranks_.empty() ? "" : std::to_string(every) + " " + place();
}

std::string keeper_place(const HeldKeeper& keeper) {
  return std::string(kKeeperWord) + " " + keeper.host + " " + keeper.address + " " +
         std::to_string(keeper.port) + " " + std::to_string(keeper.ranks);
}

OpenHeldMemory open_held_memory() {
  const char* given = std::getenv(kHeldMemoryVariable);
  std::istringstream text(given == nullptr ? "" : given);
  OpenHeldMemory memory;
  if (!(text >> memory.every) || memory.every < 1) return {};
  for (std::string word; text >> word;) {
    const bool is_read = word == kMemoryWord   ? read_own(text, memory.ranks)
                         : word == kCopiesWord ? read_own(text, memory.copies)
                         : word == kKeeperWord ? read_keeper(text, memory)
                                               : false;
    if (!is_read) return {};
  }
  return memory;
}

bool is_held_memory(const std::string& place) {
  std::istringstream text(place);
  std::string word;
  std::vector<HeldSlots> ranks;
  if (!(text >> word) || word != kMemoryWord || !read_own(text, ranks)) return false;
  return !(text >> word) || (word == kCopiesWord && read_own(text, ranks));
}

}  // namespace zerorun
