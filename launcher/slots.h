// The filter of --include: which slots (GPUs, or plain ranks on a CPU machine) of this machine take part.
// Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

/// The slots that `filter` ("localhost:0,2") names, in the same order; empty for a bare "localhost", which
/// means all slots. Throws UserError for several hosts, another host than this machine, or bad syntax.
std::vector<int> parse_include(std::string_view filter, std::string_view hostname);

/// Throws UserError naming the first slot that a machine with `gpus` GPUs does not have. Without GPUs,
/// every slot is valid.
void check_slots(const std::vector<int>& slots, int gpus);

}  // namespace zerorun
