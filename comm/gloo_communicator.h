// Ranks as processes, on one host or several, over TCP by LibTorch's Gloo.
//
// Gloo's own reduce-scatter sends twice the algorithmic volume and adds in its own order, so only its
// point-to-point messages are used: each rank sends slice j directly to rank j and adds the received slices
// in rank order; an all-gather receives in place. Messages are sent while the ranks compute; wait() does
// the additions.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/environment.h"
#include "comm/job_store.h"

namespace zerorun {

/// Connects the ranks named by `environment` (world size > 1), which have all joined `store`. Throws
/// CommError.
std::shared_ptr<Communicator> make_gloo_communicator(const Environment& environment,
                                                     const StorePointer& store, const Deadline& deadline);

}  // namespace zerorun
