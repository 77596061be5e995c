// Collects the evidence about a rank that has ended, for describe_cause(), and finds out whether a rank is
// stopped by a signal or a debugger. Used by the Job on the main thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/end_cause.h"

namespace zerorun::launcher {

/// Those of `folders` for which `is_full` returns true within half a second. It runs on threads of its own:
/// the system may wait for ever for a server that does not answer.
std::vector<std::string> full_disks(const std::vector<std::string>& folders,
                                    bool (*is_full)(const std::string& folder));

/// Call soon after the rank's end. `before`: read before the rank started. `folders`: where the rank may
/// write; folders that do not exist are skipped.
EndEvidence collect_evidence(pid_t pid, int wait_status, std::vector<std::string> last_lines,
                             const OomCounts& before, const std::vector<std::string>& folders);

/// Says how process `pid` was stopped (SIGSTOP, a terminal, a debugger) and how to continue it. Empty if it
/// is not stopped or does not exist. `root` replaces "/" (for tests).
std::string describe_stop(pid_t pid, const std::string& root = "");

}  // namespace zerorun::launcher
