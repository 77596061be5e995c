// A point in time by which something must have happened, and error texts for missing it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace zerorun {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(std::chrono::milliseconds timeout) : timeout_(timeout), end_(Clock::now() + timeout) {}

  Clock::time_point end() const { return end_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// At least 1 ms, since 0 means no limit to some functions that take it.
  std::chrono::milliseconds remaining() const;

 private:
  std::chrono::milliseconds timeout_;
  Clock::time_point end_;
};

/// "rank 1" or "ranks 1, 3"
std::string name_ranks(const std::vector<int>& ranks);

/// "reduce_scatter of bucket 3: rank 1 did not take part within 10 s (the limit set by --timeout)"
std::string missed_deadline(const std::string& what, const std::vector<int>& missing,
                            std::chrono::milliseconds timeout);
/// "reduce_scatter of bucket 3 did not end within 10 s (the limit set by --timeout)"
std::string missed_end(const std::string& what, std::chrono::milliseconds timeout);

}  // namespace zerorun
