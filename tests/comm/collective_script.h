// Runs every collective, identically on every communicator, and compares the results bit by bit with sums in
// rank order computed here without LibTorch. Communicators that pass therefore give the same bits.
#pragma once

#include <string>

#include "comm/communicator.h"

namespace zerorun::testing {

/// The memory of the script's tensors: their own, the communicator's, or alternating. Ranks may differ.
enum class ScriptMemory { own, communicators, both };

/// Runs one rank's part. Returns "N results right" or the list of the wrong ones. Does not use Catch, so that
/// forked processes can run it.
std::string run_collective_script(Communicator& communicator, ScriptMemory memory = ScriptMemory::own);

/// The text that run_collective_script() returns when all results are right.
std::string script_success(int world_size);

}  // namespace zerorun::testing
