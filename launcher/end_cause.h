// Says in one sentence why a rank ended, and what to do about it: out of memory, a full disk, an uncaught
// exception, a segmentation fault, a signal from outside. Pure; any thread. end_evidence.h collects the
// evidence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/memory_report.h"
#include "launcher/oom_kills.h"

namespace zerorun::launcher {

struct EndEvidence {
  int wait_status = 0;                       // from waitpid()
  std::vector<std::string> last_lines = {};  // of the rank's stderr, oldest first
  OomCounts before = {}, after = {};         // counted before the rank's start, and after its end
  std::optional<OomKill> oom_kill = {};      // what the kernel's log says about the rank
  std::vector<std::string> full_disks = {};  // folders that the rank may write to and whose disk is full
};

/// For example "segmentation fault: it used memory that is not its own; ...". Empty if the rank ended with
/// success, or if neither its exit code nor its last lines show the cause.
std::string describe_cause(const EndEvidence& evidence);

/// Whether somebody has killed the rank, which neither it nor a lack of memory explains.
bool was_killed_from_outside(const EndEvidence& evidence);

/// The report about the rank's memory, if it ran out or may have; else empty. `memory`: what the rank
/// counted.
std::vector<std::string> lack_of_memory(const EndEvidence& evidence, MemoryNow memory);

}  // namespace zerorun::launcher
