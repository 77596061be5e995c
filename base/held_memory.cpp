#include "base/held_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <utility>

#include "base/memory_file.h"

namespace zerorun {
namespace {

constexpr char kHeldFile[] = "zerorun held state";

// Each rank takes two open files of the launcher.
constexpr int kMostHeldRanks = 128;

}  // namespace

HeldMemory::HeldMemory(int ranks, int64_t every) : every_(every) {
  if (ranks > kMostHeldRanks) return;
  for (int rank = 0; rank < ranks; ++rank) {
    HeldSlots& slots = ranks_.emplace_back();
    for (UniqueFd& slot : slots) {
      slot = UniqueFd(::memfd_create(kHeldFile, MFD_CLOEXEC));
      if (slot.is_open()) continue;
      ranks_.clear();
      return;
    }
  }
}

std::string HeldMemory::text() const {
  if (ranks_.empty()) return {};
  std::ostringstream text;
  text << every_;
  for (const HeldSlots& slots : ranks_) {
    for (const UniqueFd& slot : slots) text << " /proc/" << ::getpid() << "/fd/" << slot.get();
  }
  return text.str();
}

OpenHeldMemory open_held_memory() {
  const char* given = std::getenv(kHeldMemoryVariable);
  std::istringstream text(given == nullptr ? "" : given);
  OpenHeldMemory memory;
  if (!(text >> memory.every) || memory.every < 1) return {};
  for (std::string first, second; text >> first >> second;) {
    HeldSlots slots = {open_memory_file(first.c_str(), kHeldFile),
                       open_memory_file(second.c_str(), kHeldFile)};
    if (!slots[0].is_open() || !slots[1].is_open()) return {};
    memory.ranks.push_back(std::move(slots));
  }
  return memory;
}

}  // namespace zerorun
