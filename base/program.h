// What every ZeroRun program does around its body: errors become one message on stderr and an exit code.
#pragma once

#include <functional>

namespace zerorun {

/// Runs `body` and turns what it throws into one message: UserError gives exit code 2, anything else 1.
/// What all ranks share (UserError, TrainingError) is told once: ranks other than 0 give rank 0 (and the
/// launcher, which then ends them) two seconds before they speak up themselves.
int run_program(const std::function<int()>& body);

/// From here on SIGTERM does not end the program, which then asks termination_requested() instead. Another
/// one, a second later or more, does.
void survive_termination();
/// Whether SIGTERM has come since. Any thread.
bool termination_requested();

/// Something went wrong that ends nothing, and has been told: a body that returns 0 gives exit code 1. Any
/// thread.
void note_failure();

}  // namespace zerorun
