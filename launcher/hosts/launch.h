// Runs a job with the given options, on this machine or on several hosts. Called once, on the main thread.
#pragma once

#include "launcher/hosts/launch_options.h"

namespace zerorun::launcher {

/// `argc` and `argv` are main's. Returns the launcher's exit code; throws UserError or Error.
int launch(const LaunchOptions& options, int argc, char** argv);

}  // namespace zerorun::launcher
