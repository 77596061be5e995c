// Ranks as threads of one process: for tests, and for a world of one. Each rank's thread holds its own
// Communicator; they meet in the ThreadGroup, which lives as long as any of them. CPU tensors only: their
// backward runs in the calling thread, so ranks do not mix.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

/// One communicator a rank; `shares_memory`: with allocate_shared().
std::vector<std::shared_ptr<Communicator>> make_thread_communicators(
    int world_size, std::chrono::milliseconds timeout = std::chrono::minutes(10), bool shares_memory = false);

}  // namespace zerorun
