// What the ranks of one host share: the control block, every rank's arena, the shared blocks and a watch on
// every process. Owned by the communicator; each part says which threads may use it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/control_block.h"
#include "comm/environment.h"
#include "comm/process_watch.h"
#include "comm/shared_arena.h"
#include "comm/shared_blocks.h"
#include "comm/store.h"

namespace zerorun {

struct HostRanks {
  ControlBlock control;
  std::shared_ptr<SharedArena> arena;    // this rank's
  std::vector<SharedSegment> lent;       // by rank, for reading; this rank's stays empty
  std::shared_ptr<SharedBlocks> blocks;  // everybody's
  ProcessWatch processes;
};

/// Connects the ranks named by `environment` (world size > 1), which have all `joined`. Null on all ranks
/// if they cannot share memory; then `obstacle` says why. Throws CommError naming the ranks that do not
/// take part.
std::unique_ptr<HostRanks> meet_on_host(const Environment& environment, const Joined& joined,
                                        const Deadline& deadline, std::string& obstacle);

}  // namespace zerorun
