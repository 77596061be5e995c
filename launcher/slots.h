// The filter of --include: which slots (GPUs, or plain ranks on a CPU machine) of this machine take part.
// Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

/// Slots that `filter` ("localhost:0,2") names, in its order; empty for a bare "localhost", which means all
/// of them. Throws UserError for several hosts, a host that is not this machine, and anything malformed.
std::vector<int> parse_include(std::string_view filter, std::string_view hostname);

/// Throws UserError naming the first slot that a machine with `gpus` GPUs does not have. Without GPUs any
/// slot will do.
void check_slots(const std::vector<int>& slots, int gpus);

}  // namespace zerorun
