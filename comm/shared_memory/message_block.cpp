#include "comm/shared_memory/message_block.h"

#include <atomic>

namespace zerorun {

struct alignas(64) MessageBlock::Slot {
  Posted posted;
  char label[192];
};

// The sender writes `sent` and `slots`, the receiver everything else.
struct alignas(64) MessageBlock::Pair {
  std::atomic<uint64_t> sent;
  alignas(64) std::atomic<uint64_t> received;
  std::atomic<uint32_t> refused;
  char refusal[1024];
  Slot slots[kMostMessages];
};

size_t MessageBlock::bytes(int world_size) {
  return static_cast<size_t>(world_size) * static_cast<size_t>(world_size) * sizeof(Pair);
}

MessageBlock::Pair& MessageBlock::pair(int sender, int receiver) const {
  const size_t place = static_cast<size_t>(sender) * ranks_.size() + static_cast<size_t>(receiver);
  return reinterpret_cast<Pair*>(memory_)[place];
}

void MessageBlock::send(int receiver, const Posted& message, std::string_view label) {
  Pair& own = pair(rank_, receiver);
  const uint64_t before = own.sent.load();
  Slot& slot = own.slots[before % kMostMessages];
  slot.posted = message;
  store_text(slot.label, label);
  own.sent.store(before + 1);
  board_->ring(ranks_[static_cast<size_t>(receiver)]);
}

uint64_t MessageBlock::count_sent(int sender, int receiver) const {
  return pair(sender, receiver).sent.load();
}

const MessageBlock::Posted& MessageBlock::posted(int sender, uint64_t number) const {
  return pair(sender, rank_).slots[(number - 1) % kMostMessages].posted;
}

std::string MessageBlock::label(int sender, uint64_t number) const {
  return load_text(pair(sender, rank_).slots[(number - 1) % kMostMessages].label);
}

void MessageBlock::receive(int sender) {
  pair(sender, rank_).received.fetch_add(1);
  board_->ring(ranks_[static_cast<size_t>(sender)]);
}

uint64_t MessageBlock::count_received(int sender, int receiver) const {
  return pair(sender, receiver).received.load();
}

void MessageBlock::refuse(int sender, std::string_view error) {
  Pair& own = pair(sender, rank_);
  store_text(own.refusal, error);
  own.refused.store(1);
  board_->ring(ranks_[static_cast<size_t>(sender)]);
}

std::string MessageBlock::refusal(int sender, int receiver) const {
  const Pair& theirs = pair(sender, receiver);
  return theirs.refused.load() != 0 ? load_text(theirs.refusal) : "";
}

}  // namespace zerorun
