// Sends and receives the same messages over any communicator, and compares each with a plain copy. Does not
// use Catch, so that forked processes can run it.
#pragma once

#include <string>

#include "comm/communicator.h"

namespace zerorun::testing {

/// Runs one rank's part. Returns kMessagesRight, or a list of what is wrong.
std::string run_message_script(Communicator& communicator);
inline constexpr char kMessagesRight[] = "messages right";

/// Values that depend on the message and its place in an order: every byte of the tensor is compared.
at::Tensor message_values(int sender, int receiver, int64_t number, int64_t numel, at::ScalarType dtype);

/// Sends `rounds` messages of each size in `sizes`, in bytes, from each rank to the next one, with receives
/// posted ahead in odd rounds. Returns like run_message_script().
std::string send_around(Communicator& communicator, const std::vector<int64_t>& sizes, int rounds);

}  // namespace zerorun::testing
