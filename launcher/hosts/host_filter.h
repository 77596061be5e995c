// Selects the slots that a job uses from the hosts it may use: --include, --exclude, --num_nodes, --num_gpus.
// Pure.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "launcher/hosts/hostfile.h"
#include "launcher/placement.h"

namespace zerorun::launcher {

/// The slots that `filter`, NODE[:SLOT[,SLOT...]][@NODE...], names: `worker-0` is all of worker-0, and slots
/// named for a host take precedence over its bare name. Hosts are in the pool's order, slots in ascending
/// order. Throws UserError naming a host or slot that does not exist, or the part with bad syntax.
std::vector<Node> include_slots(const std::vector<Host>& pool, std::string_view filter);

/// All slots but those that `filter` names. Hosts without a slot left are dropped. Throws UserError like
/// include_slots(), and also if no slot is left.
std::vector<Node> exclude_slots(const std::vector<Host>& pool, std::string_view filter);

/// The first `per_node` slots (all, if not given) of the first `nodes` hosts (all, if not given). Hosts
/// without slots do not count. Throws UserError if there are fewer hosts, or fewer slots on one of them.
std::vector<Node> first_slots(const std::vector<Host>& pool, std::optional<int> nodes,
                              std::optional<int> per_node);

}  // namespace zerorun::launcher
