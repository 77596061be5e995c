// A file to which whole records are appended. Owned by its writer, used by one thread at a time.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/unique_fd.h"

namespace zerorun {

class AppendFile {
 public:
  /// Opens the file, or creates it. Throws UserError.
  explicit AppendFile(std::filesystem::path path);

  bool is_empty() const;
  /// Removes what follows the last newline: a line of which a machine that stopped has written a part.
  void cut_to_whole_lines();
  /// Appends `record` whole: if the disk has no room for all of it, the file stays as it was. Throws
  /// UserError.
  void append(std::string_view record);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  UniqueFd file_;
};

}  // namespace zerorun
