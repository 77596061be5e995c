#include "comm/message.h"

#include <c10/core/ScalarType.h>

#include "comm/deadline.h"

namespace zerorun {
namespace {

std::string rank_in_job(int rank, const std::vector<int>& ranks) {
  return "rank " + std::to_string(ranks[static_cast<size_t>(rank)]);
}

std::string name_of(const MessageCall& call, const std::vector<int>& ranks) {
  return "message " + std::to_string(call.number) + " from " + rank_in_job(call.sender, ranks) + " to " +
         rank_in_job(call.receiver, ranks);
}

std::string with_size(const MessageFacts& facts) {
  return facts.label + " (" + std::to_string(facts.numel) + " elements of " + c10::toString(facts.dtype) +
         ")";
}

}  // namespace

bool has_room(uint64_t count, int64_t bytes, int64_t more) {
  return count < kMostMessages && (bytes == 0 || bytes + more <= kMostMessageBytes);
}

MessageFacts facts_of(const MessageCall& call) {
  return {.numel = call.tensor.numel(), .dtype = call.tensor.scalar_type(), .label = call.label};
}

std::string describe(const MessageCall& call, const std::vector<int>& ranks) {
  return (call.is_send ? "send of " : "receive of ") + call.label + " (" + name_of(call, ranks) + ")";
}

std::string describe_disagreement(const MessageCall& mine, const MessageFacts& theirs,
                                  const std::vector<int>& ranks) {
  const MessageFacts own = facts_of(mine);
  return "ranks disagree on " + name_of(mine, ranks) + ": " + rank_in_job(mine.sender, ranks) + " sends " +
         with_size(mine.is_send ? own : theirs) + ", " + rank_in_job(mine.receiver, ranks) + " receives " +
         with_size(mine.is_send ? theirs : own);
}

std::string missed_deadline(const MessageCall& call, const std::vector<int>& ranks,
                            std::chrono::milliseconds timeout) {
  if (call.is_send) return words_of_no_room(call, ranks) + within(timeout);
  return describe(call, ranks) + ": " + rank_in_job(call.sender, ranks) + " did not send it" +
         within(timeout);
}

std::string words_of_no_room(const MessageCall& call, const std::vector<int>& ranks) {
  constexpr int64_t kMebibyte = int64_t{1} << 20;
  return describe(call, ranks) + ": " + rank_in_job(call.receiver, ranks) +
         " has not received earlier messages, of which at most " + std::to_string(kMostMessages) +
         ", and at most " + std::to_string(kMostMessageBytes / kMebibyte) +
         " MiB, may be on the way; it made no room";
}

}  // namespace zerorun
