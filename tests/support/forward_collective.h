// Passes a collective or a message on to another communicator, for communicators that wrap one.
#pragma once

#include <memory>
#include <utility>

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

/// Likewise a message, of `tensor`.
inline std::unique_ptr<Work> forward(Communicator& communicator, const MessageCall& call, at::Tensor tensor) {
  return call.is_send ? communicator.send(std::move(tensor), call.receiver, call.label)
                      : communicator.receive(std::move(tensor), call.sender, call.label);
}

/// A collective that was complete when it was started.
struct Done : Work {
  void wait() override {}
};

}  // namespace zerorun::testing
