// bench_step --watched: a step at stage 3 with all that watches a run (timeline, run log, monitors, the log
// of collectives), beside one without, and beside that one again.
#pragma once

#include "benchmarks/step_variants.h"

namespace zerorun {

/// Runs one rank's part, and prints the result on rank 0. Returns the exit code.
int run_step_watched(const StepOptions& options);

}  // namespace zerorun
