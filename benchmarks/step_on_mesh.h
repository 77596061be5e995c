// bench_step --mesh: a step of tensor ranks beside a step of data ranks alone, with the same samples, and
// beside itself without the sums of tensor ranks.
#pragma once

#include <string>

#include "base/mesh_sizes.h"
#include "benchmarks/step_variants.h"

namespace zerorun {

/// Reads a text such as "data=1,tensor=2". Throws UserError if it is no mesh of `ranks` ranks with tensor
/// ranks.
MeshSizes parse_mesh(const std::string& text, int ranks);

/// Runs one rank's part, and prints the result on rank 0. `options.micro_batch`: of a rank if all are data
/// ranks. Returns the exit code.
int run_step_on_mesh(const StepOptions& options, const MeshSizes& mesh);

}  // namespace zerorun
