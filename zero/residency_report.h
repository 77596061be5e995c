// Counters of parameter gathers so far, on this rank.
#pragma once

#include <cstdint>

namespace zerorun {

struct ResidencyReport {
  int64_t gathers = 0;     // all-gathers of buckets
  int64_t waited = 0;      // gathers that the engine or an operator had to wait for
  int64_t ready = 0;       // gathers that were complete when needed
  double waited_ms = 0;    // in total
  int64_t departures = 0;  // iterations that did not follow the trace
  int64_t unplanned_allocations = 0;
  int64_t resident_bytes = 0;  // memory behind partitioned buckets now, with the arena
  int64_t peak_resident_bytes = 0;
};

}  // namespace zerorun
