// Shows the launcher which ranks of its host wait for others to join, so that it can end a job in which one
// of them has ended without joining.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/activity_board.h"
#include "base/rank_file.h"

namespace zerorun {

/// The environment variable with the path of the launcher's board.
inline constexpr char kBoardVariable[] = "ZERORUN_BOARD";

/// What the board shows of one rank.
struct Joins {
  uint32_t number = 0;      // of joins that it has completed, times two, plus 1 while it joins
  uint32_t world_size = 0;  // of its last join: how many ranks it waits for
};

/// The launcher's side. Any thread.
class JoinBoard {
 public:
  JoinBoard() = default;
  /// A board for this many ranks; has no path if the system has no memory files.
  explicit JoinBoard(int ranks);

  /// The path for kBoardVariable; empty if there is no board.
  std::string path() const { return file_.path(); }
  Joins joins(int local_rank) const;

 private:
  RankFile file_;
};

/// A rank's side: this process joins the job as long as this object exists. Does nothing without a board, but
/// the calling thread drives the rank from now on ([Note: activity]). Any thread.
class Joining {
 public:
  Joining(int local_rank, int world_size);
  ~Joining();
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

 private:
  int local_rank_, world_size_;
  std::optional<ShownWait> wait_;
};

}  // namespace zerorun
