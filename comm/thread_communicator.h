// Ranks as threads of one process: for tests, and for a world size of 1. Each rank's thread has its own
// Communicator; they meet in the ThreadGroup, which they own jointly. CPU tensors only: their backward runs
// in the calling thread, so ranks do not mix.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

/// One communicator for each rank. `shares_memory`: whether allocate_shared() works.
std::vector<std::shared_ptr<Communicator>> make_thread_communicators(
    int world_size, std::chrono::milliseconds timeout = std::chrono::minutes(10), bool shares_memory = false);

}  // namespace zerorun
