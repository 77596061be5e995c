// Runs ranks as threads of the test process, each with its own communicator.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "comm/communicator.h"

namespace zerorun::testing {

using RankBody = std::function<void(std::shared_ptr<Communicator>)>;

/// Calls `body` once for each rank, each in a thread of its own; a single rank runs in the caller's thread. A
/// rank computes with one thread.
/// After all threads have ended, rethrows the exception of the lowest rank that failed. A CommError is
/// rethrown only if no rank threw anything else. `shares_memory`: whether allocate_shared() of the
/// communicators works. The default is true if the environment has ZERORUN_TEST_SHARED_MEMORY.
void run_ranks(int world_size, const RankBody& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(60),
               std::optional<bool> shares_memory = {});

}  // namespace zerorun::testing
