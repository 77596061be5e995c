// What a rank did in one optimizer step, for the page of `zerorun report`. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/timeline_ring.h"

namespace zerorun {

/// The last step that the events have as a whole; null if they have none. `begin_ns`, `end_ns`: by the rank's
/// clock. `spans`: lists of track, row within the track, name, and begin and end in ns since `begin_ns`.
/// Spans too short to be seen are left out.
nlohmann::json last_step_of(const std::vector<TimelineThread>& threads,
                            const std::vector<TimelineEvent>& events);

}  // namespace zerorun
