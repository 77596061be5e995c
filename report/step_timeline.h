// The figure of one optimizer step on all ranks, from what a run's timeline has left beside its log
// (docs/monitoring.md, "Timeline"). Used by one thread.
#pragma once

#include <nlohmann/json.hpp>

#include "report/run_facts.h"

namespace zerorun {

/// The ranks at most that the figure shows.
inline constexpr int kMostRanksShown = 8;

/// The step's number, how long the ranks took for it together, and what each of the first ranks did: tracks
/// of spans, in milliseconds since the first of them began. Null if the run has recorded no timeline, or its
/// files have no whole step.
nlohmann::ordered_json step_timeline_of(const ReportedRun& run);

}  // namespace zerorun
