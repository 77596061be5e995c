// The last few lines of a stream of bytes, for the report about a failed rank. Pure; owned by the rank's
// entry in the Job, used by one thread. Memory is bounded: long lines are cut. Of a line that '\r'
// redraws, only the last text is kept.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun::launcher {

class LineTail {
 public:
  static constexpr size_t kLines = 20;
  static constexpr size_t kLongestLine = 500;

  void feed(std::string_view bytes);
  /// At most kLines lines that are not blank, oldest first, control characters shown as '?'.
  std::vector<std::string> lines() const;

 private:
  void end_line();

  std::deque<std::string> lines_;
  std::string partial_;
  bool cut_ = false;
  bool draw_over_ = false;
};

}  // namespace zerorun::launcher
