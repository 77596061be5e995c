// Describes how a rank ended, from the status that waitpid() returned: as text and as an exit code. Pure.
#pragma once

#include <string>

namespace zerorun::launcher {

bool succeeded(int wait_status);
/// True for exit code 2: a user's mistake, which the program has already reported.
bool was_user_mistake(int wait_status);
/// "exited with code 3", "killed by signal 9 (SIGKILL)".
std::string describe_end(int wait_status);
/// The rank's own exit code, or 128 + signal if a signal ended the rank.
int exit_code_of(int wait_status);
/// "SIGINT"; "signal 40" if the signal has no name.
std::string signal_name(int signal);

}  // namespace zerorun::launcher
