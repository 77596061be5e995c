// `zerorun diff`: the first step and parameter at which two runs part, by their logs. Called once from main,
// in its thread.
#pragma once

namespace zerorun::launcher {

/// Runs the command, prints to stdout, and returns the exit code. Throws UserError for a mistake on the
/// command line or logs that cannot be compared.
int run_diff_command(int argc, const char* const* argv);

}  // namespace zerorun::launcher
