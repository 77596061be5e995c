// Runs ranks as threads of the test process.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "comm/communicator.h"

namespace zerorun::testing {

using RankBody = std::function<void(std::shared_ptr<Communicator>)>;

/// Runs `body` once for each rank, each in its own thread (a single rank in the caller's). Rethrows the
/// lowest failing rank's exception; a CommError only if no rank threw another one. `shares_memory`: the
/// communicators have allocate_shared(); by default if ZERORUN_TEST_SHARED_MEMORY is set.
void run_ranks(int world_size, const RankBody& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(60),
               std::optional<bool> shares_memory = {});

}  // namespace zerorun::testing
