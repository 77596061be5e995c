// Runs the main function of a ZeroRun program, and turns its errors into one message on stderr and an exit
// code.
#pragma once

#include <functional>

namespace zerorun {

/// Runs `body` and turns an exception into one message: UserError gives exit code 2, anything else 1.
/// Errors that all ranks throw (UserError, TrainingError) are printed once: ranks other than 0 wait two
/// seconds before they print theirs. In that time the launcher ends them, because rank 0 has failed.
int run_program(const std::function<int()>& body);

/// From now on SIGTERM does not end the program; the program asks termination_requested() instead. A further
/// SIGTERM, at least a second after the first, ends the program.
void survive_termination();
/// Whether SIGTERM has arrived since survive_termination() was called. Any thread.
bool termination_requested();

/// Call this after reporting an error that does not end the program: if `body` then returns 0,
/// run_program() returns exit code 1. Any thread.
void note_failure();

/// For processes without run_program(): from now on, if note_failure() was called, exit() ends the process
/// with exit code 1 in place of 0.
void give_noted_failures_an_exit_code();

}  // namespace zerorun
