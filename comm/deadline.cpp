#include "comm/deadline.h"

#include <algorithm>
#include <cstdio>

namespace zerorun {

std::string within(std::chrono::milliseconds timeout) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%g", static_cast<double>(timeout.count()) / 1000);
  return std::string(" within ") + seconds + " s (the limit set by --timeout)";
}

std::chrono::milliseconds Deadline::remaining() const {
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::string names = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i) names += (i ? ", " : " ") + std::to_string(ranks[i]);
  return names;
}

std::string missed_deadline(const std::string& what, const std::vector<int>& missing,
                            std::chrono::milliseconds timeout) {
  return what + ": " + name_ranks(missing) + " did not take part" + within(timeout);
}

std::string missed_end(const std::string& what, std::chrono::milliseconds timeout) {
  return what + " did not end" + within(timeout);
}

}  // namespace zerorun
