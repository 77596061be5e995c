// `zerorun report`: a page about one or two runs, by their logs. Called once from main, in its thread.
#pragma once

namespace zerorun::launcher {

/// Runs the command, prints to stdout, and returns the exit code. Throws UserError for a mistake on the
/// command line, logs that cannot be read, or a page that cannot be written.
int run_report_command(int argc, const char* const* argv);

}  // namespace zerorun::launcher
