// How ranks find each other. Used once a connect, by its thread.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/environment.h"

namespace zerorun {

/// Joins the other ranks, over NCCL where they train on GPUs, else over shared memory or Gloo, and returns
/// when all are there. Each call makes connections of its own; all ranks call it in the same order. A
/// process keeps its rank, and rank 0 the store at which they meet, to its end. Throws UserError (port in
/// use, a rank or a port of others, bad variables, no usable GPU, no shared memory where that is asked for)
/// or CommError naming the ranks that did not join within the deadline.
std::shared_ptr<Communicator> connect(const Environment& environment = Environment::read());

}  // namespace zerorun
