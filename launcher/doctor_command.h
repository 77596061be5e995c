// `zerorun doctor`: prints the facts about this host that a bug report needs, and tries collectives between
// ranks or hosts. Called once from main, in its thread.
#pragma once

namespace zerorun::launcher {

/// Whether the command line begins with `zerorun doctor`.
bool is_doctor_command(int argc, const char* const* argv);

/// Runs the command, prints to stdout, and returns the exit code: 0, or 1 if there is a problem. Throws
/// UserError for a mistake on the command line.
int run_doctor_command(int argc, const char* const* argv);

}  // namespace zerorun::launcher
