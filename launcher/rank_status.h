// How a rank ended, in words and as an exit code. Pure: takes the status that waitpid() gives.
#pragma once

#include <string>

namespace zerorun {

bool succeeded(int wait_status);
/// True for exit code 2: a user's mistake, which the program has told already.
bool was_user_mistake(int wait_status);
/// "exited with code 3", "killed by signal 9 (SIGKILL)".
std::string describe_end(int wait_status);
/// The rank's own exit code, 128 + signal for a signal.
int exit_code_of(int wait_status);
/// "SIGINT"; "signal 40" where a signal has no name.
std::string signal_name(int signal);

}  // namespace zerorun
