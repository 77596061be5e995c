// An NCCL that moves values, linked in place of libnccl: for ranks that are threads of one process, each on a
// GPU of its own of the fake CUDA (fake_cuda.h), whose memory is the host's. Records what each rank launches.
//
// Launches are stricter than NCCL's. That of a collective returns when all ranks of the communicator have
// launched it, so ranks that launch the collectives of several communicators in different orders wait for
// each other, and get an error after a while. A send waits for nobody. A receive waits for its send, which
// ZeroRun never lets it do for long. Sums are of float32, in rank order. Any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace zerorun::testing {

struct Launch {
  int communicator;  // its number among all of them
  std::string what;  // such as "all_gather"
  size_t bytes;      // of this rank's input

  bool operator==(const Launch&) const = default;
};

/// What the rank on `gpu` has launched, in this order.
std::vector<Launch> launches_of(int gpu);
/// Forgets all launches. Launches wait for other ranks for at most `patience` from now on.
void reset_moving_nccl(std::chrono::milliseconds patience = std::chrono::seconds(30));

}  // namespace zerorun::testing
