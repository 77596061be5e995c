#include "comm/shared_memory/shared_messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/fnv1a.h"
#include "base/timeline.h"
#include "base/wait_for_ranks.h"
#include "comm/nontemporal.h"
#include "comm/shared_memory/rank_transfers.h"

namespace zerorun {
namespace {

MessageWait wait_of(const MessageCall& call) {
  return {.is_send = call.is_send, .sender = call.sender, .receiver = call.receiver, .number = call.number};
}

}  // namespace

SharedMessages::SharedMessages(RankTransfers& all, uint64_t group, int rank, const std::vector<int>& ranks,
                               char* memory, std::chrono::milliseconds timeout)
    : all_(all),
      group_(group),
      rank_(rank),
      ranks_(ranks),
      block_(memory, rank, ranks, all.board()),
      timeout_(timeout),
      peers_(ranks.size()) {}

void SharedMessages::send(const MessageCall& call) {
  all_.note_thread();
  const auto room = [&] {
    const std::lock_guard lock(all_.mutex());
    all_.advance_all();
    return has_room_for(call);
  };
  throw_if(wait_for(call, room));
  Sent sent{.number = call.number, .bytes = call.bytes(), .block = {}};
  if (sent.bytes > 0) {
    sent.block = all_.scratch().take(call.bytes());
    std::memcpy(all_.host().arena->at(sent.block.offset), call.tensor.const_data_ptr(), call.tensor.nbytes());
  }
  block_.send(call.receiver,
              {.numel = call.tensor.numel(),
               .offset = sent.block.offset,
               .label_hash = fnv1a(kFnv1aStart, call.label),
               .dtype = static_cast<int32_t>(call.tensor.scalar_type())},
              call.label);
  const std::lock_guard lock(all_.mutex());
  Peer& peer = peers_[static_cast<size_t>(call.receiver)];
  peer.bytes += sent.bytes;
  peer.sent.push_back(sent);
}

std::shared_ptr<SharedMessages::Receipt> SharedMessages::receive(MessageCall call) {
  all_.note_thread();
  auto receipt = std::make_shared<Receipt>(Receipt{.call = std::move(call)});
  const std::lock_guard lock(all_.mutex());
  peers_[static_cast<size_t>(receipt->call.sender)].expected.push_back(receipt);
  all_.advance_all();
  return receipt;
}

void SharedMessages::wait(Receipt& receipt) {
  throw_if(wait_for(receipt.call, [&] {
    const std::lock_guard lock(all_.mutex());
    all_.advance_all();
    return receipt.done;
  }));
}

void SharedMessages::check(int other) {
  throw_if(disagreement(other));
}

void SharedMessages::throw_if(const std::string& error) const {
  if (error.empty()) return;
  all_.board().say_failed(error);
  throw CommError(error);
}

bool SharedMessages::has_room_for(const MessageCall& call) const {
  const Peer& peer = peers_[static_cast<size_t>(call.receiver)];
  return has_room(peer.sent.size(), peer.bytes, call.bytes());
}

bool SharedMessages::advance() {
  bool done = false;
  for (int other = 0; other < static_cast<int>(peers_.size()); ++other) {
    free_received(other);
    done = advance_receives(other) || done;
  }
  return done;
}

void SharedMessages::free_received(int other) {
  Peer& peer = peers_[static_cast<size_t>(other)];
  if (peer.sent.empty()) return;
  const uint64_t received = block_.count_received(rank_, other);
  for (; !peer.sent.empty() && peer.sent.front().number <= received; peer.sent.pop_front()) {
    const Sent& one = peer.sent.front();
    if (one.bytes > 0) all_.scratch().give_back(one.block);
    peer.bytes -= one.bytes;
  }
}

bool SharedMessages::advance_receives(int other) {
  Peer& peer = peers_[static_cast<size_t>(other)];
  bool done = false;
  while (!peer.expected.empty()) {
    Receipt& receipt = *peer.expected.front();
    const uint64_t number = receipt.call.number;
    if (block_.count_sent(other, rank_) < number || !block_.refusal(other, rank_).empty()) break;
    const MessageBlock::Posted& message = block_.posted(other, number);
    const MessageFacts mine = facts_of(receipt.call);
    if (message.numel != mine.numel || message.dtype != static_cast<int32_t>(mine.dtype) ||
        message.label_hash != fnv1a(kFnv1aStart, mine.label)) {
      const MessageFacts theirs{.numel = message.numel,
                                .dtype = static_cast<at::ScalarType>(message.dtype),
                                .label = block_.label(other, number)};
      block_.refuse(other, describe_disagreement(receipt.call, theirs, ranks_));
      all_.board().ring_own();
      break;
    }
    take(receipt.call, message);
    receipt.done = done = true;
    receipt.call.tensor.reset();
    block_.receive(other);
    peer.expected.pop_front();
  }
  return done;
}

void SharedMessages::take(const MessageCall& call, const MessageBlock::Posted& message) const {
  if (message.numel == 0) return;
  const char* from = all_.host().lent[static_cast<size_t>(in_job(call.sender))].data() + message.offset;
  copy_much(call.tensor.mutable_data_ptr(), from, call.tensor.nbytes());
}

bool SharedMessages::is_idle() const {
  return std::ranges::all_of(peers_,
                             [](const Peer& peer) { return peer.sent.empty() && peer.expected.empty(); });
}

std::string SharedMessages::disagreement(int other) const {
  std::string error = block_.refusal(rank_, other);
  return error.empty() ? block_.refusal(other, rank_) : error;
}

std::string SharedMessages::disagreement() const {
  for (int other = 0; other < static_cast<int>(peers_.size()); ++other) {
    if (std::string error = disagreement(other); !error.empty()) return error;
  }
  return "";
}

bool SharedMessages::is_awaited(const MessageWait& theirs) const {
  if (!theirs.is_send) {
    return theirs.sender == rank_ && block_.count_sent(rank_, theirs.receiver) < theirs.number;
  }
  return theirs.receiver == rank_ && peers_[static_cast<size_t>(theirs.sender)].expected.empty();
}

// Returns the error that ends the wait, or an empty text.
std::string SharedMessages::wait_for(const MessageCall& call, const std::function<bool()>& reached) const {
  if (reached()) return "";
  const WaitForRanks wait(TimelineName::wait_for_message, in_job(call.other()));
  Deadline deadline(timeout_);
  const std::string words = describe(call, ranks_);
  return all_.wait({.what = {.group = group_, .which = {}, .message = wait_of(call)},
                    .label = words,
                    .reason = "",
                    .reached = reached,
                    .error = [&] { return disagreement(call.other()); },
                    .error_of_others = [&] { return error_of_other(call, reached, deadline); },
                    .suspicion = [&] { return standstill(call); }},
                   deadline);
}

// The error if the process of the other rank has ended, or if the deadline has passed.
std::string SharedMessages::error_of_other(const MessageCall& call, const std::function<bool()>& reached,
                                           const Deadline& deadline) const {
  const int other = in_job(call.other());
  const bool ended = std::ranges::binary_search(all_.host().processes.ended(), other);
  if (!ended && Deadline::Clock::now() < deadline.end()) return "";
  if (reached()) return "";  // the rank did its part before its process ended
  if (!ended) return missed_deadline(call, ranks_, timeout_) + all_.doings_of(other);
  return describe(call, ranks_) + ": rank " + std::to_string(other) + " has ended (process " +
         std::to_string(all_.host().processes.process(other)) + ")" + all_.doings_of(other);
}

// The error, if it stays, that the other rank waits for something that this rank has not started.
std::string SharedMessages::standstill(const MessageCall& call) const {
  const int other = in_job(call.other());
  const RankBoard& board = all_.board();
  if (board.is_threaded(in_job(rank_)) || board.is_threaded(other)) return "";
  const auto theirs = board.waiting(other);
  const std::lock_guard lock(all_.mutex());
  if (!theirs || !all_.is_awaited(*theirs)) return "";
  return "ranks wait for each other: rank " + std::to_string(in_job(rank_)) + " in " +
         describe(call, ranks_) + ", rank " + std::to_string(other) + " in " + board.words_of_wait(other);
}

}  // namespace zerorun
