#include "comm/shared_memory/control_block.h"

namespace zerorun {

struct alignas(64) ControlBlock::Slot {
  std::atomic<uint64_t> posted;    // number + 1 of the last posted collective
  std::atomic<uint64_t> finished;  // number + 1 of the last finished collective
  Posting posting;
  char label[192];
  char reason[256];
};

size_t ControlBlock::bytes(int world_size) {
  return static_cast<size_t>(world_size) * kCollectiveKinds * kSlots * sizeof(Slot);
}

ControlBlock::Slot& ControlBlock::slot(int rank, Numbered which) const {
  const size_t ring = static_cast<size_t>(rank) * kCollectiveKinds + static_cast<size_t>(which.kind);
  return reinterpret_cast<Slot*>(memory_)[ring * kSlots + which.number % kSlots];
}

// Loads and stores must be sequentially consistent. Then, if several ranks post at the same time, at least
// one of them sees that all ranks have posted, and wakes the ranks that sleep.
void ControlBlock::post(Numbered which, const Posting& posting, std::string_view label,
                        std::string_view reason) {
  Slot& mine = slot(rank_, which);
  mine.posting = posting;
  store_text(mine.label, label);
  store_text(mine.reason, reason);
  mine.posted.store(which.number + 1);
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    if (!has_posted(rank, which)) return;
  }
  ring_all();
}

bool ControlBlock::has_posted(int rank, Numbered which) const {
  return slot(rank, which).posted.load() > which.number;
}

const Posting& ControlBlock::posting(int rank, Numbered which) const {
  return slot(rank, which).posting;
}

void ControlBlock::finish(Numbered which) {
  slot(rank_, which).finished.store(which.number + 1);
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    if (!has_finished(rank, which)) return;
  }
  ring_all();
}

bool ControlBlock::has_finished(int rank, Numbered which) const {
  return slot(rank, which).finished.load() > which.number;
}

std::string ControlBlock::words(int rank, Numbered which) const {
  const Slot& theirs = slot(rank, which);
  if (theirs.posted.load() != which.number + 1) return "?";
  return describe({which.kind, {}, {}, 0, load_text(theirs.label), load_text(theirs.reason)});
}

void ControlBlock::ring_all() {
  for (size_t step = 1; step <= ranks_.size(); ++step) {
    board_->ring(ranks_[(static_cast<size_t>(rank_) + step) % ranks_.size()]);
  }
}

}  // namespace zerorun
