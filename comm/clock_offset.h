// How the clock of this rank's machine differs from rank 0's, for timelines of several hosts.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.h"

namespace zerorun {

struct ClockOffset {
  int64_t offset_ns = 0;      // rank 0's CLOCK_MONOTONIC minus this rank's
  int64_t round_trip_ns = 0;  // the shortest of the exchanges; 0: one clock
};

/// A text that ranks of one clock share: the host, its boot and its time namespace.
std::string machine_of_clock();

/// Rank 0 and one rank of each other machine exchange their times, 100 times; the exchange with the shortest
/// round trip counts, because it bounds the error best: by half of the round trip. A collective. `machine`:
/// from machine_of_clock().
ClockOffset measure_clock_offset(Communicator& world, const std::string& machine);

}  // namespace zerorun
