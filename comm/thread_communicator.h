// Ranks as threads of one process, for tests and for a world size of 1. Each rank's thread has its own
// Communicator; the communicators jointly own a ThreadGroup. Supports only CPU tensors, because their
// backward runs in the thread that calls it. So no rank's thread runs operators of another rank.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

/// Makes one communicator per rank. `shares_memory`: whether allocate_shared() is supported.
std::vector<std::shared_ptr<Communicator>> make_thread_communicators(
    int world_size, std::chrono::milliseconds timeout = std::chrono::minutes(10), bool shares_memory = false);

/// The communicator of a group that is one rank. `announce_failure` does that for the job.
std::shared_ptr<Communicator> make_lone_communicator(
    RankGroup group, std::chrono::milliseconds timeout,
    std::function<void(const std::string& error)> announce_failure);

}  // namespace zerorun
