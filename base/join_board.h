// Shows the launcher which ranks of its host wait for others to join, so that it can end a job in which one
// of them has ended without joining. One number for each rank of the host, in an anonymous memory file of the
// launcher: ranks find it by a path in their environment, so it reaches them through any wrapper.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace zerorun {

/// The environment variable with the path of the launcher's board.
inline constexpr char kBoardVariable[] = "ZERORUN_BOARD";

/// The launcher's side. Any thread.
class JoinBoard {
 public:
  JoinBoard() = default;
  /// A board for this many ranks; has no path if the system has no memory files.
  explicit JoinBoard(int ranks);

  /// The path for kBoardVariable; empty if there is no board.
  std::string path() const;
  /// The number of joins that this rank of the host has completed, times two, plus 1 while it joins.
  uint32_t joins(int local_rank) const;

 private:
  UniqueFd file_;
};

/// A rank's side: this process joins the job as long as this object exists. Does nothing without a board.
/// Any thread.
class Joining {
 public:
  explicit Joining(int local_rank);
  ~Joining();
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

 private:
  int local_rank_;
};

}  // namespace zerorun
