// The state that the ranks of one host share: the board, the control block of all of them, every rank's
// arena, the shared blocks, and a watch on every rank's process. Owned by the communicator. Each member
// documents its own thread safety.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/meeting/environment.h"
#include "comm/meeting/store.h"
#include "comm/shared_memory/process_watch.h"
#include "comm/shared_memory/rank_board.h"
#include "comm/shared_memory/shared_arena.h"
#include "comm/shared_memory/shared_blocks.h"

namespace zerorun {

struct HostRanks {
  SharedSegment control;  // of the board, then the control block of all ranks
  RankBoard board;
  std::shared_ptr<SharedArena> arena;  // the arena of this rank
  std::vector<SharedSegment> lent;  // the other ranks' arenas by rank, read-only; this rank's entry is empty
  std::shared_ptr<SharedBlocks> blocks;  // the memory to which several ranks write
  ProcessWatch processes;
};

/// Connects the ranks of `environment` (world size > 1), all of which have joined the store of `joined`. If
/// they cannot share memory, returns null on all ranks and sets `obstacle` to the reason. Throws CommError
/// naming the ranks that do not take part.
std::unique_ptr<HostRanks> meet_on_host(const Environment& environment, const Joined& joined,
                                        const Deadline& deadline, std::string& obstacle);

}  // namespace zerorun
