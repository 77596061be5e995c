// An anonymous memory file of the launcher with an entry of fixed size for each rank of its host: what ranks
// show the launcher while they run, and what it can still read once they have been killed. Ranks find it by a
// path in their environment, so it reaches them through any wrapper.
#pragma once

#include <cstddef>
#include <string>

#include "base/unique_fd.h"

namespace zerorun {

/// The launcher's side. Any thread.
class RankFile {
 public:
  RankFile() = default;
  /// Zeros for this many ranks. Has no path if the system has no memory files. `name` says whose it is.
  RankFile(const char* name, size_t entry_bytes, int ranks);

  /// For the environment; empty if there is no file.
  std::string path() const;
  /// Copies a rank's entry. False if there is none.
  bool read(int local_rank, void* entry) const;

 private:
  UniqueFd file_;
  size_t entry_bytes_ = 0;
};

/// A rank's side: opens the launcher's file, for reading and writing. Not open if the variable is not set, or
/// has outlived its launcher and leads to another file than one of this name.
UniqueFd open_rank_file(const char* variable, const char* name);

}  // namespace zerorun
