// The report of flops_profiler. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "config/monitoring_config.h"
#include "monitor/flops.h"

namespace zerorun {

/// `parameters`: the model's. `seconds`: of the step's forwards and backwards on the host's clock; 0: not
/// measured.
std::string describe(const FlopTotals& totals, int64_t step, int64_t parameters, double seconds,
                     const FlopsProfilerConfig& config);

}  // namespace zerorun
