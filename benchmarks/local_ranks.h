// Runs the ranks of a benchmark as processes, without the launcher.
#pragma once

#include <functional>

namespace zerorun {

/// Forks `world_size` ranks, with the environment that connect() reads and one LibTorch thread each, and runs
/// `body` in each rank. Returns 0, or the first exit code that is not 0. Call it before the process has other
/// threads.
int run_local_ranks(int world_size, const std::function<int()>& body);

}  // namespace zerorun
