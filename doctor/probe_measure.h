// Times collectives of a communicator and checks their results. All ranks of the communicator call the same
// functions in the same order.
#pragma once

#include "comm/communicator.h"
#include "doctor/links.h"

namespace zerorun {

/// Fills in what `report` says about collectives of all ranks. Throws CommError, also if a sum is wrong.
void measure_collectives(Communicator& communicator, JobReport& report);

/// Latency and bandwidth between the two ranks of `communicator`, whose tensors are on the CPU. Throws
/// CommError, also if data arrives changed.
void measure_link(Communicator& communicator, Link& link);

}  // namespace zerorun
