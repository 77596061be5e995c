// What every ZeroRun program does around its main function: errors become one message on stderr and an exit
// code.
#pragma once

#include <functional>

namespace zerorun {

/// Runs `body` and turns an exception into one message: UserError gives exit code 2, anything else 1.
/// Errors that all ranks throw (UserError, TrainingError) are printed once: ranks other than 0 wait two
/// seconds for rank 0 (and the launcher, which then ends them) before they print theirs.
int run_program(const std::function<int()>& body);

/// From now on SIGTERM does not end the program, which asks termination_requested() instead. Another
/// SIGTERM at least a second later does.
void survive_termination();
/// Whether SIGTERM has arrived since. Any thread.
bool termination_requested();

/// Call after reporting an error that does not end the program: then a `body` that returns 0 gives exit
/// code 1. Any thread.
void note_failure();

}  // namespace zerorun
