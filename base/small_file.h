// Reads files that people write: configurations, hostfiles, lists of variables. Any thread.
#pragma once

#include <cstddef>
#include <string>

namespace zerorun {

struct SmallFile {
  std::string text;
  std::string problem;  // why the file could not be read, such as "it is a directory"; empty: it was
};

/// Reads a regular file, a device or a pipe (`<(command)` of a shell) of at most `most_bytes`. Does not wait
/// for ever: a pipe into which nobody writes is a problem.
SmallFile read_small_file(const std::string& file, size_t most_bytes);

}  // namespace zerorun
