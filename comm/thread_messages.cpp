#include "comm/thread_messages.h"

#include <cstring>

namespace zerorun {

bool ThreadMessages::has_room_for(const MessageCall& send) const {
  const auto found = pairs_.find({send.sender, send.receiver});
  if (found == pairs_.end() || !found->second.expected.empty()) return true;
  return has_room(found->second.sent.size(), found->second.bytes, send.bytes());
}

void ThreadMessages::post(MessageCall send) {
  Pair& pair = pairs_[{send.sender, send.receiver}];
  if (pair.expected.empty()) {
    pair.bytes += send.bytes();
    pair.sent.push_back(std::move(send));
    return;
  }
  deliver(pair, send, *pair.expected.front());
  pair.expected.pop_front();
}

std::shared_ptr<ThreadMessages::Receipt> ThreadMessages::expect(MessageCall receive) {
  Pair& pair = pairs_[{receive.sender, receive.receiver}];
  auto receipt = std::make_shared<Receipt>(Receipt{.call = std::move(receive)});
  if (pair.sent.empty()) {
    pair.expected.push_back(receipt);
    return receipt;
  }
  deliver(pair, pair.sent.front(), *receipt);
  pair.bytes -= pair.sent.front().bytes();
  pair.sent.pop_front();
  return receipt;
}

void ThreadMessages::deliver(Pair& pair, const MessageCall& send, Receipt& receipt) const {
  if (facts_of(send) != facts_of(receipt.call)) {
    if (pair.disagreement.empty())
      pair.disagreement = describe_disagreement(send, facts_of(receipt.call), ranks_);
    return;
  }
  if (send.bytes() > 0)
    std::memcpy(receipt.call.tensor.mutable_data_ptr(), send.tensor.const_data_ptr(), send.tensor.nbytes());
  receipt.done = true;
}

std::string ThreadMessages::disagreement(int rank, int other) const {
  for (const auto& ends : {std::pair(rank, other), std::pair(other, rank)}) {
    const auto found = pairs_.find(ends);
    if (found != pairs_.end() && !found->second.disagreement.empty()) return found->second.disagreement;
  }
  return "";
}

std::string ThreadMessages::disagreement(int rank) const {
  for (const auto& [ends, pair] : pairs_) {
    if ((ends.first == rank || ends.second == rank) && !pair.disagreement.empty()) return pair.disagreement;
  }
  return "";
}

}  // namespace zerorun
