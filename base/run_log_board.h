// Shows the launcher the folder of the run log, so that it can note there how a rank has failed, which no
// rank may be left to do.
#pragma once

#include <filesystem>

#include "base/rank_file.h"

namespace zerorun {

/// The environment variable with the path of the launcher's board.
inline constexpr char kRunLogBoardVariable[] = "ZERORUN_RUN_LOG_BOARD";

/// The launcher's side. Any thread.
class RunLogBoard {
 public:
  RunLogBoard() = default;
  /// `has_board`: whether the first rank of the job, which writes the log, is one of this host's.
  explicit RunLogBoard(bool has_board);

  /// The path for kRunLogBoardVariable; empty if there is no board.
  std::string path() const { return file_.path(); }
  /// The folder that rank 0 has shown last; empty: none.
  std::filesystem::path folder() const;

 private:
  RankFile file_;
};

/// Rank 0's side. `folder` is absolute. Does nothing without a board.
void show_run_log(const std::filesystem::path& folder);

}  // namespace zerorun
