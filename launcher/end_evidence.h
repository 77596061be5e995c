// Collects from the system what describe_cause() needs to know about a rank that has ended, and says whether
// a rank that runs is stopped. Used by the job on the main thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/end_cause.h"

namespace zerorun {

/// Call soon after the rank's end. `before` was read before the rank started; `folders` are those that it
/// may write to (those that do not exist are passed over).
EndEvidence collect_evidence(pid_t pid, int wait_status, std::vector<std::string> last_lines,
                             const OomCounts& before, const std::vector<std::string>& folders);

/// What a process that SIGSTOP, a terminal or a debugger has stopped needs to go on; empty if it is not
/// stopped or does not exist. `root` replaces "/" (for tests).
std::string describe_stop(pid_t pid, const std::string& root = "");

}  // namespace zerorun
