// The number of ranks that a job has when all of its hosts take part (zerorun --min_nodes). Any thread.
#pragma once

#include <optional>

namespace zerorun {

/// The environment variable with that number. It is set only while hosts are left out.
inline constexpr char kFullWorldVariable[] = "ZERORUN_FULL_WORLD_SIZE";

/// That number for a config that is read for `world_size` ranks; absent if no host is left out, or if these
/// are not all ranks that are left. Throws UserError if the variable is malformed.
std::optional<int> full_world_of(int world_size);

}  // namespace zerorun
