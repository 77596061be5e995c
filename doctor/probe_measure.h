// Times collectives of a communicator and checks their results. All ranks of the communicator call the same
// functions in the same order.
#pragma once

#include "comm/communicator.h"
#include "doctor/links.h"

namespace zerorun::doctor {

/// Measures collectives of all ranks and stores the results in `report`. Throws CommError if a collective
/// fails or a sum is wrong.
void measure_collectives(Communicator& communicator, JobReport& report);

/// Measures latency and bandwidth between the two ranks of `communicator`, whose tensors are on the CPU, and
/// stores them in `link`. Throws CommError if a transfer fails or data arrives changed.
void measure_link(Communicator& communicator, Link& link);

}  // namespace zerorun::doctor
