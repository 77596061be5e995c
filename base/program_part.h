// What a program says of itself to the launcher. base/activity_board.cpp shows it.
#pragma once

#include <array>
#include <string_view>

namespace zerorun {

/// Says what the program does while this object lives, for the launcher's report about a rank that makes no
/// progress. The beginning and the end are signs of life. For the thread that drives the engine, or the main
/// thread; others show nothing.
///
///   const zerorun::ProgramPart part("the data loader");
class ProgramPart {
 public:
  explicit ProgramPart(std::string_view name);
  ~ProgramPart();
  ProgramPart(const ProgramPart&) = delete;
  ProgramPart& operator=(const ProgramPart&) = delete;

 private:
  bool is_shown_;
  std::array<char, 96> before_{};
};

}  // namespace zerorun
