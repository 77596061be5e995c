// Finds the first step at which two runs part, from their logs. Where equal bits are not to be expected, such
// as with another number of ranks, it compares losses and norms within a tolerance. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "monitor/run_record.h"

namespace zerorun {

/// What differs first between the runs, in the order of cause and effect.
enum class Parting {
  start,          // values before the first step
  written,        // values that something else than the optimizer has changed
  loss,           // the loss of a data rank
  gradients,      // of a parameter
  loss_scale,     // or whether the step was skipped
  norm,           // of the gradients, though these are equal or not hashed
  learning_rate,  // and nothing above
  values,         // that the update has left, though gradients and learning rate are equal
};

struct PartingStep {
  int64_t step = 0;  // for `start`: the number of steps before
  Parting what = Parting::loss;
  std::optional<std::string> parameter = {};  // the first in the model's order of those that differ
  std::optional<int> rank = {};               // the one data rank with another loss, if there are others
  std::vector<std::string> facts = {};        // all that differs in this step, a line each
  std::string hint = {};                      // where to look
};

struct RunComparison {
  RunRecord first = {}, second = {};
  std::vector<std::string> differences = {};  // between the runs' settings, of those that change results
  std::vector<std::string> reasons = {};      // why bits cannot be equal; empty: they are compared
  std::vector<std::string> notes = {};
  bool has_hashes = false;  // of both runs, and bits are compared
  double tolerance = 0;     // of losses and norms, if bits are not compared
  int64_t steps = 0;        // that both have
  int64_t first_step = 0, last_step = 0;
  std::optional<PartingStep> parting = {};  // absent: no difference
};

struct ComparisonOptions {
  std::optional<double> tolerance = {};  // relative, if bits cannot be equal; absent: by the precision
};

/// The tolerance of runs in `precision` and `other` ("fp32", "bf16").
double default_tolerance(const std::string& precision, const std::string& other);

/// Compares the logs in two folders. Throws UserError if there is nothing to compare: no log, a damaged one,
/// different models, no common step.
RunComparison compare_runs(const std::filesystem::path& first, const std::filesystem::path& second,
                           const ComparisonOptions& options = {});

/// For a terminal; a and b are the names of the runs there.
std::string to_text(const RunComparison& comparison, const std::string& a, const std::string& b);

}  // namespace zerorun
