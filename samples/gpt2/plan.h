// What `gpt2 ... --plan` prints. Used by main().
#pragma once

#include <zerorun/zerorun.h>

#include <optional>

#include "samples/gpt2/options.h"

namespace samples {

/// Plans the same model, config and forward as in a run, on tensors without memory. options.plan is set.
/// Returns the program's exit code. Throws UserError.
int print_plan_of(const ProgramOptions& options, const std::optional<zerorun::MeshSizes>& mesh);

}  // namespace samples
