// Passes a collective on to another communicator, for communicators that wrap one.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace zerorun::testing {

/// Starts `call` on `communicator`.
inline std::unique_ptr<Work> forward(Communicator& communicator, const CollectiveCall& call) {
  switch (call.kind) {
    case Collective::reduce_scatter:
      return communicator.reduce_scatter(call.output, call.input, call.label);
    case Collective::all_gather:
      return communicator.all_gather(call.output, call.input, call.label, call.reason);
    case Collective::all_reduce:
      return communicator.all_reduce(call.output, call.label);
    case Collective::broadcast:
      return communicator.broadcast(call.output, call.root, call.label);
    case Collective::barrier:
      break;
  }
  return communicator.barrier(call.label);
}

/// A collective that was complete when it was started.
struct Done : Work {
  void wait() override {}
};

}  // namespace zerorun::testing
