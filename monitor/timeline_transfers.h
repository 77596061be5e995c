// The transfers among a timeline's events: collectives, messages and chunks of files, which overlap each
// other. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/timeline_ring.h"

namespace zerorun {

struct RecordedTransfer {
  TimelineEvent start;
  uint64_t end = UINT64_MAX;  // it has not ended
};

/// By the time of their starts. Ends whose starts the ring has lost are left out.
std::vector<RecordedTransfer> transfers_of(const std::vector<TimelineEvent>& events);

}  // namespace zerorun
