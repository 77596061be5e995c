// Runs the ranks of a benchmark as processes, without the launcher.
#pragma once

#include <functional>

namespace zerorun {

/// Forks `world_size` ranks with the environment that connect() reads, one LibTorch thread each, runs `body`
/// in each and returns the first exit code that is not 0. Call it before anything has started a thread.
int run_local_ranks(int world_size, const std::function<int()>& body);

}  // namespace zerorun
