// The communicator of ranks that are processes on one or several hosts. It uses LibTorch's Gloo over TCP.
//
// Only Gloo's point-to-point messages are used: its reduce-scatter sends twice the necessary volume and adds
// in an order of its own. Each rank sends slice j directly to rank j, which adds the received slices in rank
// order in wait(). An all-gather receives into its output directly. Messages travel while the ranks compute.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/meeting/environment.h"
#include "comm/meeting/job_store.h"

namespace zerorun {

/// Connects `ranks`, this one among them: at least two ranks of the job, as numbers in the job, whose group
/// has no name if they are all ranks. All ranks of the job have joined `store` and call this at the same
/// time. Throws CommError.
std::shared_ptr<Communicator> make_gloo_communicator(const Environment& environment, RankGroup ranks,
                                                     const StorePointer& store, const Deadline& deadline);
/// Connects all ranks of `environment` (world size > 1).
std::shared_ptr<Communicator> make_gloo_communicator(const Environment& environment,
                                                     const StorePointer& store, const Deadline& deadline);

}  // namespace zerorun
