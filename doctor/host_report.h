// All that `zerorun doctor` says about one host. Any thread; takes some milliseconds.
#pragma once

#include "doctor/finding.h"

namespace zerorun::doctor {

/// Of the `world_size` ranks of a job, `local_ranks` run on this host.
Findings examine_host(int local_ranks, int world_size);

}  // namespace zerorun::doctor
