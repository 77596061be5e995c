// Connects the ranks of a job. Called by the thread that connects.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/meeting/environment.h"

namespace zerorun {

/// Joins the other ranks, over NCCL if they train on GPUs, else over shared memory or Gloo, and returns
/// when all have joined. Each call makes new connections; all ranks make their calls in the same order.
/// A process keeps its rank until it ends, and rank 0 keeps the store where the ranks meet. Throws UserError
/// (port in use, rank or port of another job, bad variables, no usable GPU, shared memory asked for but not
/// possible) or CommError naming the ranks that did not join by the deadline.
std::shared_ptr<Communicator> connect(const Environment& environment = Environment::read());

}  // namespace zerorun
