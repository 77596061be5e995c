// The number and the costs of this rank's gathers of parameters since the start. A value type.
#pragma once

#include <cstdint>

namespace zerorun {

struct ResidencyReport {
  int64_t gathers = 0;     // all-gathers of buckets
  int64_t waited = 0;      // of these, gathers that the engine or an operator waited for
  int64_t ready = 0;       // of these, gathers that were complete when needed
  double waited_ms = 0;    // total time of waiting for gathers
  int64_t departures = 0;  // iterations that departed from the trace
  int64_t unplanned_allocations = 0;
  int64_t resident_bytes = 0;  // memory of gathered buckets now, planned memory included
  int64_t peak_resident_bytes = 0;
  /// Copies that autocast has made of parameters that are accessible only around their uses: how often they
  /// were made (for forward, and again for backward), and their memory, which is not in resident_bytes.
  int64_t casts = 0;
  int64_t cast_bytes = 0;
  int64_t peak_cast_bytes = 0;
  bool lost_ranks = false;  // a gather has thrown CommError, and so may every later collective
};

}  // namespace zerorun
