// Runs the same collectives on any communicator. Compares the results bit by bit with sums in rank order that
// are computed without LibTorch. So all communicators that pass give the same bits.
#pragma once

#include <string>

#include "comm/communicator.h"

namespace zerorun::testing {

/// The function that allocates the script's tensors: at::empty(), Communicator::allocate(), or both in turn.
/// Ranks may use different functions.
enum class ScriptMemory { own, communicators, both };

/// Runs one rank's part. `sum_group`: the number of ranks whose sums are added first; 0: all. Returns "N
/// results right" or a list of the wrong results. Does not use Catch, so that forked processes can run it.
std::string run_collective_script(Communicator& communicator, ScriptMemory memory = ScriptMemory::own,
                                  int sum_group = 0);

/// The text that run_collective_script() returns when all results are right.
std::string script_success(int world_size);

}  // namespace zerorun::testing
