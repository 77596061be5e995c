// Runs the ranks of a benchmark as processes, without the launcher.
#pragma once

#include <functional>

namespace zerorun {

/// Forks `world_size` ranks and runs `body` in each. Each rank has the environment variables that connect()
/// reads, and one LibTorch thread. Returns 0, or the first exit code that is not 0. Call it before the
/// process has other threads.
int run_local_ranks(int world_size, const std::function<int()>& body);

}  // namespace zerorun
