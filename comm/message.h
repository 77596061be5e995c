// A message from one rank to another, as every transport sees it, and the texts of errors about messages.
//
// Messages from one rank of a communicator to another are numbered in the order of the calls: the nth send is
// received by the nth receive. This order is independent of collectives and of other pairs of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace zerorun {

// The most that may be on the way from one rank of a communicator to another: sent, but not received. A send
// beyond that waits until there is room, at most until the deadline. A message that is larger than
// kMostMessageBytes is sent alone.
inline constexpr uint64_t kMostMessages = 64;
inline constexpr int64_t kMostMessageBytes = int64_t{1} << 30;

/// Whether `count` messages of `bytes` bytes together, which are on the way, leave room for one more of
/// `more` bytes.
bool has_room(uint64_t count, int64_t bytes, int64_t more);

/// A send or a receive of this rank with its arguments.
struct MessageCall {
  bool is_send;
  at::Tensor tensor;
  int sender;  // a rank of the communicator, like `receiver`
  int receiver;
  std::string label;
  uint64_t number;  // among those from `sender` to `receiver`, counted from 1

  int other() const { return is_send ? receiver : sender; }
  int64_t bytes() const { return static_cast<int64_t>(tensor.nbytes()); }
};

/// What a send and its receive must agree on.
struct MessageFacts {
  int64_t numel = 0;
  at::ScalarType dtype = at::kFloat;
  std::string label;

  bool operator==(const MessageFacts&) const = default;
};
MessageFacts facts_of(const MessageCall& call);

// `ranks`: those of the communicator, as numbers in the job, which the texts name.

/// Returns a text such as "receive of activations of micro-batch 2 (message 3 from rank 0 to rank 1)".
std::string describe(const MessageCall& call, const std::vector<int>& ranks);
/// Returns a text such as "ranks disagree on message 3 from rank 0 to rank 1: rank 0 sends activations (4
/// elements of Float), rank 1 receives gradients (4 elements of Float)". `theirs` is the other rank's.
std::string describe_disagreement(const MessageCall& mine, const MessageFacts& theirs,
                                  const std::vector<int>& ranks);
/// The error for a wait that missed its deadline: of a receive, or of a send for room.
std::string missed_deadline(const MessageCall& call, const std::vector<int>& ranks,
                            std::chrono::milliseconds timeout);
/// Says that a send waits for room, and how much there is; for messages.
std::string words_of_no_room(const MessageCall& call, const std::vector<int>& ranks);

}  // namespace zerorun
