// Ranks as processes on the CPUs of one host, over memory that they share.
//
// Memory from allocate_shared() is there once for all ranks. Memory from allocate() lies in the rank's arena,
// which the others read: a reduce-scatter reads its slice once from every rank's input and writes the sum, an
// all-gather copies each slice once. Other tensors that must be lent are copied into the arena first. There
// is no thread behind it: a rank takes its share of what is under way whenever it starts or waits for a
// collective, and sleeps where it has to wait.
//
// A rank whose process ends is noticed within a quarter of a second by those who need it; one that is
// stopped, at the deadline.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/environment.h"
#include "comm/store.h"

namespace zerorun {

/// Connects the ranks named by `environment` (world size > 1), which have all `joined`. Null where they
/// cannot share memory, on all ranks alike; `obstacle` then says why. Throws CommError.
std::shared_ptr<Communicator> make_shared_memory_communicator(const Environment& environment,
                                                              const Joined& joined, const Deadline& deadline,
                                                              std::string& obstacle);

}  // namespace zerorun
