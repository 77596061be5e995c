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

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/meeting/job_store.h"
#include "comm/shared_memory/host_ranks.h"

namespace zerorun {

/// Connects the ranks of a host, at least two. All have joined the job, of which `store` is a part that
/// belongs to them. If they cannot share memory, returns null on all of them and sets `obstacle` to the
/// reason. Throws CommError.
std::shared_ptr<Communicator> make_shared_memory_communicator(const RanksOfHost& ranks,
                                                              const StorePointer& store, uint64_t job,
                                                              std::chrono::milliseconds timeout,
                                                              const Deadline& deadline,
                                                              std::string& obstacle);

}  // namespace zerorun
