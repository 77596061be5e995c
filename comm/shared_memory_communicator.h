// Ranks as processes on the CPUs of one host, over memory that they share.
//
// Memory from allocate_shared() exists once for all ranks. Memory from allocate() is in the rank's arena,
// which the other ranks read: a reduce-scatter reads this rank's slice once from every rank's input and
// writes the sum; an all-gather copies each slice once. Other tensors that the other ranks must read are
// copied into the arena first. There is no background thread: a rank does its share of the collectives
// under way whenever it starts a collective or waits for one, and sleeps when it has to wait.
//
// Ranks that wait for a rank whose process has ended notice it within a quarter of a second; if it is
// stopped, at the deadline.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/environment.h"
#include "comm/store.h"

namespace zerorun {

/// Connects the ranks named by `environment` (world size > 1), which have all `joined`. Null on all ranks
/// if they cannot share memory; then `obstacle` says why. Throws CommError.
std::shared_ptr<Communicator> make_shared_memory_communicator(const Environment& environment,
                                                              const Joined& joined, const Deadline& deadline,
                                                              std::string& obstacle);

}  // namespace zerorun
