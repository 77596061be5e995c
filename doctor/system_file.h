// Files that describe the machine, below /proc and /sys.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

namespace zerorun::doctor {

/// Empty if the file cannot be read.
inline std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace zerorun::doctor
