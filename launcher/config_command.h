// `zerorun config`: looks at ds_config.json files without running anything. Called once from main, in its
// thread.
#pragma once

namespace zerorun {

/// Whether the command line is one of `zerorun config ...`.
bool is_config_command(int argc, const char* const* argv);

/// Runs it, prints to stdout, and returns the exit code. Throws UserError for a mistake on the command line
/// or a file that cannot be read.
int run_config_command(int argc, const char* const* argv);

}  // namespace zerorun
