// `zerorun config`: checks, shows and compares ds_config.json files, without running a job. Called once from
// main, in its thread.
#pragma once

namespace zerorun::launcher {

/// Runs the command, prints to stdout, and returns the exit code. Throws UserError for a mistake on the
/// command line or a file that cannot be read.
int run_config_command(int argc, const char* const* argv);

}  // namespace zerorun::launcher
