// The state that the ranks of one host share: the board, the control block of all of them, every rank's
// arena, the shared blocks, and a watch on every rank's process. Owned by the communicator. Each member
// documents its own thread safety.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/meeting/job_store.h"
#include "comm/shared_memory/process_watch.h"
#include "comm/shared_memory/rank_board.h"
#include "comm/shared_memory/shared_arena.h"
#include "comm/shared_memory/shared_blocks.h"

namespace zerorun {

/// The ranks of one host: `count` ranks from `first` on, of the job's `world_size`. This one is `rank`.
struct RanksOfHost {
  int rank = 0;
  int first = 0;
  int count = 1;
  int world_size = 1;

  /// All ranks of the job.
  static RanksOfHost all(int rank, int world_size) {
    return {.rank = rank, .count = world_size, .world_size = world_size};
  }
};

/// Ranks are numbers in the job.
struct HostRanks {
  int count;              // of the ranks of this host
  SharedSegment control;  // of the board, then the control block of all ranks
  RankBoard board;
  std::shared_ptr<SharedArena> arena;  // the arena of this rank
  std::vector<SharedSegment> lent;     // the other ranks' arenas by rank, read-only; other entries are empty
  std::shared_ptr<SharedBlocks> blocks;  // the memory to which several ranks write
  ProcessWatch processes;
};

/// Connects the ranks of a host, all of which have joined the job. `store`: a part of the job's store that
/// belongs to these ranks. If they cannot share memory, returns null on all of them and sets `obstacle` to
/// the reason. Throws CommError naming the ranks that do not take part.
std::unique_ptr<HostRanks> meet_on_host(const RanksOfHost& ranks, const StorePointer& store, uint64_t job,
                                        const Deadline& deadline, std::string& obstacle);

}  // namespace zerorun
