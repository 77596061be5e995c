// `zerorun checkpoint`: looks at checkpoints, and takes them to and from other programs, without running
// anything. Called once from main, in its thread.
#pragma once

namespace zerorun {

/// Whether the command line is one of `zerorun checkpoint ...`.
bool is_checkpoint_command(int argc, const char* const* argv);

/// Runs it, prints to stdout, and returns the exit code. Throws UserError for a mistake on the command line
/// or a checkpoint that cannot be read.
int run_checkpoint_command(int argc, const char* const* argv);

}  // namespace zerorun
