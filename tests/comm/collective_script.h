// A run through every collective, the same for every communicator, checked bit by bit against sums in rank
// order computed here without LibTorch. What passes on two communicators therefore gives the same bits on
// both.
#pragma once

#include <string>

#include "comm/communicator.h"

namespace zerorun::testing {

/// Where the script's tensors lie: in memory of their own, in the communicator's, or by turns. Ranks may
/// differ.
enum class ScriptMemory { own, communicators, both };

/// One rank's part. Returns "N results right" or the list of the wrong ones; knows nothing of Catch, so that
/// forked processes can run it.
std::string run_collective_script(Communicator& communicator, ScriptMemory memory = ScriptMemory::own);

/// What it returns when all is well.
std::string script_success(int world_size);

}  // namespace zerorun::testing
