// The figures of a report as JSON: the points of curves, and the bars of model states. Pure functions; any
// thread.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "report/run_facts.h"

namespace zerorun {

/// A number of a figure as JSON, of seven digits: the word for it if it is not finite.
nlohmann::ordered_json number_in_figure(double value);

/// The figures with curves in the order of the page.
nlohmann::ordered_json figures_of(const std::vector<ReportedRun>& runs);

/// Model states of one rank by stage as ZeRO's formula has them, and what was measured when they were most:
/// bars of parameters, gradients, optimizer states and the rest, in MiB.
nlohmann::ordered_json state_bars(const ReportedRun& run);

/// Whether the ranks keep one copy of the parameters together (docs/architecture.md).
bool shares_parameters(const RunRecord& run);

/// The elements that a rank sends in a step by ZeRO's formula; 0: there is none for this mesh.
double formula_elements(const RunRecord& run);

}  // namespace zerorun
