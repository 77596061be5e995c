#include "launcher/rank_failure.h"

#include "launcher/rank_status.h"

namespace zerorun::launcher {

std::string describe_end(const RankFailure& failure) {
  return failure.is_hung ? "hung" : describe_end(failure.wait_status);
}

std::vector<std::string> report_lines(const RankFailure& failure, const std::string& name) {
  std::string first = name + " " + describe_end(failure);
  if (!failure.cause.empty()) first += ": " + failure.cause;
  std::vector<std::string> lines = {first};
  if (!was_user_mistake(failure.wait_status) && !failure.last_lines.empty()) {
    lines.front() += "; its last lines on stderr:";
    for (const std::string& line : failure.last_lines) lines.push_back("  " + line);
  }
  lines.insert(lines.end(), failure.memory.begin(), failure.memory.end());
  return lines;
}

}  // namespace zerorun::launcher
