// Compares one step of two runs. Pure functions; internal to monitor/.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "monitor/run_comparison.h"

namespace zerorun {

/// The norm may differ by so many times the tolerance of losses.
inline constexpr double kNormFactor = 10;

/// In which log the values after a step are those of a start; in the other one they are the step's.
struct StartPlaces {
  bool in_a = false, in_b = false;
};

/// By step: the starts whose values both logs know. Each list is ascending.
std::map<int64_t, StartPlaces> places_of_starts(const std::vector<int64_t>& starts_of_a,
                                                const std::vector<int64_t>& starts_of_b,
                                                const std::vector<int64_t>& steps_of_a,
                                                const std::vector<int64_t>& steps_of_b);

/// Nothing if the values are equal, or if one is empty. The shorter text lacks frozen parameters.
std::optional<PartingStep> compare_start_values(int64_t step, const HashText& a, const HashText& b,
                                                const RunRecord& run);

/// Nothing if the runs do not part in this step. Compares bits if `runs` gives no reason against it.
std::optional<PartingStep> compare_step(const StepRecord& a, const StepRecord& b, const RunComparison& runs);

}  // namespace zerorun
