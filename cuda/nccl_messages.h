// The messages of GPU tensors between one rank and the others of a group, over NCCL.
//
// [Note: messages on GPUs] NCCL runs the calls on one communicator one after the other, so a send that waits
// for its receiver would hold up all later calls there. So each direction of each pair of ranks has a
// communicator of its own, which Communicator::open_messages() connects. A send copies its tensor on the
// current stream and transfers the copy on a stream of that direction: the current stream does not wait for
// the receiver. What the two ranks expect travels as an empty message of `control`. A receive is enqueued, on
// the current stream, only when the sender has announced it: so a kernel of NCCL never waits for a rank that
// has sent nothing, and ranks that disagree never start one.
//
// Owned by the communicator and by its receives. Any thread, but one at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/message.h"
#include "cuda/nccl_comms.h"
#include "cuda/nccl_watchdog.h"
#include "cuda/stream_probe.h"

namespace zerorun {

class NcclMessages {
 public:
  /// Two communicators for each pair of ranks: from the lower to the higher one, and back.
  static constexpr size_t kDirections = 2;

  /// What belongs to the rank's communicator, and outlives this object.
  struct Home {
    Communicator& communicator;  // whose device has the tensors
    Communicator& control;
    NcclWatchdog& watchdog;
    StreamProbe& probe;
    std::function<cudaStream_t()> current_stream;  // of the calling thread
  };

  NcclMessages(Home home, int gpu, const NcclSetup& setup);
  ~NcclMessages();
  NcclMessages(const NcclMessages&) = delete;
  NcclMessages& operator=(const NcclMessages&) = delete;

  /// Connects this rank and rank `other`, which calls it too. `ids` has kDirections ids.
  void connect(int other, const NcclComms::Ids& ids);
  bool is_connected(int other) const { return links_.contains(other); }

  /// Sends a copy of the tensor. If there is no room, waits for it. Throws CommError.
  std::unique_ptr<Work> send(const MessageCall& call);
  /// Announces the receive; take() enqueues it.
  std::unique_ptr<Work> announce(const MessageCall& call);
  void take(const MessageCall& call);

  /// Waits for what was sent, then disconnects.
  void close();

 private:
  struct Sent {
    at::Tensor copy;
    cudaEvent_t over;
  };
  struct Link {
    std::shared_ptr<NcclComms> comms;
    cudaStream_t stream = nullptr;  // of the sends
    std::deque<Sent> sent;
    int64_t bytes = 0;  // of `sent`
  };

  Link& link_to(int other);
  size_t direction(const MessageCall& call) const;
  void await_room(const MessageCall& call, Link& link);
  void free_transferred(Link& link);
  void meet(int other, Link& link);

  Home home_;
  const int gpu_;
  const NcclSetup setup_;
  std::map<int, Link> links_;  // by the other rank
};

}  // namespace zerorun
