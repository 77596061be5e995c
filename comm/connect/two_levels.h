// Connects ranks on several hosts: over shared memory on each host, and over Gloo between hosts
// (comm/two_level/two_level_communicator.h). Called by the thread that connects.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/meeting/environment.h"
#include "comm/meeting/store.h"

namespace zerorun {

/// Connects the ranks of `environment`, all of which have joined. Returns null on all ranks, with the reason
/// in `obstacle`, if the launcher's variables do not give several hosts with as many ranks each, at least
/// two, and consecutive numbers, or if the ranks of a host cannot share memory. Throws CommError.
std::shared_ptr<Communicator> connect_in_two_levels(const Environment& environment, const Joined& joined,
                                                    const Deadline& deadline, std::string& obstacle);

}  // namespace zerorun
