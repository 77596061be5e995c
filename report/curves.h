// The steps of a run as columns, and those points of them that a figure shows: however long a run is, a curve
// has at most kMostPoints of them, with the smallest and the largest value of each stretch of steps. Plain
// values and pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "monitor/run_log_reader.h"

namespace zerorun {

inline constexpr size_t kMostPoints = 2000;

struct Column {
  std::string label = {};
  std::vector<double> values = {};  // one of each step
  std::vector<bool> is_known = {};  // likewise; what is not known is no point
  bool is_known_anywhere() const;
};

/// The columns of all steps of a run.
struct RunColumns {
  std::vector<int64_t> steps;  // ascending
  std::vector<int64_t> skipped;
  Column loss, norm, lr, loss_scale, speed, tokens, seconds;  // samples and tokens per second
  std::map<std::string, Column> bytes;                        // of rank 0, by category
  std::map<std::string, Column> sent;                         // elements of rank 0, by kind
  double total_seconds = 0;
  int64_t samples = 0;  // until the last step
};

/// Reads all steps. Throws UserError if a line is damaged.
RunColumns read_columns(RunLogReader& log);

/// The places of the steps that a figure of these columns shows, ascending: of each stretch of steps the
/// first one, and for each column its smallest and largest finite value and the first that is not finite.
std::vector<size_t> shown_places(const std::vector<const Column*>& columns, size_t steps);

/// At most `count` of them, from the whole range.
std::vector<int64_t> thinned(const std::vector<int64_t>& steps, size_t count);

}  // namespace zerorun
