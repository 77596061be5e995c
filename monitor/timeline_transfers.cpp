#include "monitor/timeline_transfers.h"

#include <algorithm>
#include <unordered_map>

namespace zerorun {

std::vector<RecordedTransfer> transfers_of(const std::vector<TimelineEvent>& events) {
  std::vector<RecordedTransfer> transfers;
  std::unordered_map<uint32_t, size_t> open;  // by the low bits of the start's ticket
  for (const TimelineEvent& one : events) {
    if (one.kind == TimelineKind::start) {
      open[static_cast<uint32_t>(one.ticket)] = transfers.size();
      transfers.push_back({one});
    } else if (one.kind == TimelineKind::finish) {
      const auto found = open.find(static_cast<uint32_t>(one.number));
      if (found == open.end()) continue;
      transfers[found->second].end = one.time_ns;
      open.erase(found);
    }
  }
  std::ranges::stable_sort(transfers, {}, [](const RecordedTransfer& one) { return one.start.time_ns; });
  return transfers;
}

}  // namespace zerorun
