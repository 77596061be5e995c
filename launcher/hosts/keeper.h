// In a job on several hosts with --hold_every, the keeper of one host: a process that holds the memory in
// which the ranks of its host keep generations of their state, and lets ranks of other hosts read them. It is
// the hidden command `zerorun --keeper ADDRESS,... PORT NODE RANKS TAG`, which the host's agent starts.
//
// [Note: the life of a keeper] A keeper outlives its agent, so that what it holds stays when ranks, the agent
// or the launcher's ssh are killed. It is no child of theirs, is in a session of its own, and has none of
// their pipes. Its life hangs on its connection to the launcher: once that ends, because the job is over or
// the launcher was killed, the keeper ends. Until it has connected, it ends with the agent that has started
// it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/hosts/node_order.h"

namespace zerorun::launcher {

inline constexpr char kKeeperCommand[] = "--keeper";
/// What a keeper says to its agent once it has connected to the launcher; anything else is an error.
inline constexpr char kKeeperReady[] = "ready";

bool is_keeper_command(int argc, const char* const* argv);
/// Returns the exit code.
int run_keeper_command(int argc, char** argv);

/// The agent's side: sees to it that this host has the keeper of the order, and starts one if that is gone.
/// Returns the tag of the one that was started; empty if it was there. `addresses`: the launcher's;
/// `meanwhile` is called several times a second. Throws Error if a keeper cannot start or cannot connect.
std::string provide_keeper(const NodeOrder& order, const std::vector<std::string>& addresses,
                           const std::function<void()>& meanwhile);

}  // namespace zerorun::launcher
