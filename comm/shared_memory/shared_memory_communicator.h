// The communicator of ranks that are processes on the CPUs of one host. Collectives use shared memory.
//
// Memory from allocate() is in the rank's arena, where other ranks read it directly: a reduce-scatter reads
// this rank's slice of every input once and writes the sum, and an all-gather copies each slice once. Other
// tensors are copied into the arena before other ranks read them. There is no background thread: a rank does
// its part of all collectives in flight whenever it starts a collective or waits for one.
//
// If a rank's process ends, ranks that wait for it throw within a quarter of a second. If it is only stopped,
// they throw at the deadline.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/meeting/environment.h"
#include "comm/meeting/store.h"

namespace zerorun {

/// Connects the ranks of `environment` (world size > 1), all of which have joined the store of `joined`. If
/// they cannot share memory, returns null on all ranks and sets `obstacle` to the reason. Throws CommError.
std::shared_ptr<Communicator> make_shared_memory_communicator(const Environment& environment,
                                                              const Joined& joined, const Deadline& deadline,
                                                              std::string& obstacle);

}  // namespace zerorun
