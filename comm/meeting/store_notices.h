// Notices of ranks that are processes: the texts are keys in the ranks' store.
#pragma once

#include <memory>

#include "comm/meeting/job_store.h"
#include "comm/notices.h"

namespace zerorun {

/// The board of a rank that is a process. `board` is the board's number, which is the same on all ranks and
/// differs between boards.
std::unique_ptr<Notices> make_notices(const StorePointer& store, int board);

}  // namespace zerorun
