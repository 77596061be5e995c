// What every ZeroRun program does around its body: errors become one message on stderr and an exit code.
#pragma once

#include <functional>

namespace zerorun {

/// Runs `body` and turns what it throws into one message: UserError gives exit code 2, anything else 1.
/// What all ranks share (UserError, TrainingError) is told once: ranks other than 0 give rank 0 (and the
/// launcher, which then ends them) two seconds before they speak up themselves.
int run_program(const std::function<int()>& body);

}  // namespace zerorun
