// Finds a rank of this host that has ended with success without joining the job, although another rank waits
// for all ranks. Used on the main thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/join_board.h"

namespace zerorun::launcher {

/// How often to look once a rank has ended.
inline constexpr std::chrono::milliseconds kMissingTick(250);

class MissingRank {
 public:
  /// Numbers of ranks on this host.
  struct Found {
    size_t missing;
    size_t waiting;
  };

  /// `statuses`: from waitpid(), by rank; absent while the rank runs. `world_size`: of the whole job. Returns
  /// a rank once another one has waited for it for a second.
  std::optional<Found> look(const JoinBoard& board, uint32_t world_size,
                            const std::vector<std::optional<int>>& statuses);

 private:
  std::optional<std::chrono::steady_clock::time_point> since_;  // ranks wait for one that has ended
};

}  // namespace zerorun::launcher
