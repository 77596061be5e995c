// `zerorun doctor`: prints the facts about this host that a bug report needs, and tries collectives between
// ranks or hosts. Called once from main, in its thread.
#pragma once

#include <string>
#include <vector>

#include "launcher/hosts/launch_options.h"

namespace zerorun::launcher {

/// The user's `arguments`, with defaults for the hosts, the number of ranks, the device and the timeout if
/// they are not given. `given`: the arguments, parsed. `gpus`: those of this host.
std::vector<std::string> with_doctor_defaults(std::vector<std::string> arguments, const LaunchOptions& given,
                                              int gpus);

/// Runs the command, prints to stdout, and returns the exit code: 0, or 1 if there is a problem. Throws
/// UserError for a mistake on the command line.
int run_doctor_command(int argc, const char* const* argv);

}  // namespace zerorun::launcher
