// The memory of the timelines of this host's ranks (base/timeline_ring.h), which outlives the ranks: after
// they have ended, the launcher writes the files of those that could not, and the archive. Main thread.
#pragma once

#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace zerorun::launcher {

class TimelineRings {
 public:
  TimelineRings() = default;
  explicit TimelineRings(int ranks);

  /// The path for kTimelineRingVariable, by number on this host; empty if the system has no memory
  /// files, or the host too many ranks.
  std::string path(int local_rank) const;

  /// Call this when the ranks of this host have ended. `failed`: the job has. `has_first`: rank 0 is one of
  /// them, so this launcher writes the archive. Returns lines for the user.
  std::vector<std::string> finish(bool failed, bool has_first) const;

 private:
  std::vector<UniqueFd> files_;
};

}  // namespace zerorun::launcher
