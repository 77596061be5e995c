#include "launcher/missing_rank.h"

#include "launcher/rank_status.h"

namespace zerorun::launcher {
namespace {

// A rank that waits this long for one that has ended without joining will not see it join.
constexpr std::chrono::milliseconds kMissingPatience(1000);

// A rank that waits for fewer ranks than the job has, because the program has set another WORLD_SIZE, may
// wait without the missing one.
std::optional<MissingRank::Found> find(const JoinBoard& board, uint32_t world_size,
                                       const std::vector<std::optional<int>>& statuses) {
  for (size_t ended = 0; ended < statuses.size(); ++ended) {
    if (!statuses[ended] || !succeeded(*statuses[ended])) continue;
    const uint32_t done = board.joins(static_cast<int>(ended)).number;
    for (size_t other = 0; other < statuses.size(); ++other) {
      if (statuses[other]) continue;
      const Joins joins = board.joins(static_cast<int>(other));
      const bool waits_for_all = joins.number % 2 == 1 && joins.world_size >= world_size;
      if (waits_for_all && joins.number > done) return MissingRank::Found{ended, other};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<MissingRank::Found> MissingRank::look(const JoinBoard& board, uint32_t world_size,
                                                    const std::vector<std::optional<int>>& statuses) {
  const auto found = find(board, world_size, statuses);
  const auto now = std::chrono::steady_clock::now();
  if (!found) {
    since_.reset();
  } else if (!since_) {
    since_ = now;
  }
  return found && now - *since_ > kMissingPatience ? found : std::nullopt;
}

}  // namespace zerorun::launcher
