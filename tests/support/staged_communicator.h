// A communicator for tests in which several rank processes share one GPU, which NCCL refuses before
// version 2.30. A collective on the device's tensors goes through host memory: copy to the host, a collective
// of the ranks on the CPU, copy back. Both copies run on the current stream of the calling thread, so that
// the ranks' streams must order their work as they must for NCCL. Sums have the bits of CPU ranks.
//
// Unlike NCCL, a collective holds the calling thread until the other ranks have started the same collective.
// So all ranks must start all their collectives in one order, not only those of one kind.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace zerorun::testing {

class StagedCommunicator : public Communicator {
 public:
  /// `control`: a communicator of the same ranks for CPU tensors. `delay`, if set, gives the calling thread's
  /// current stream some work that takes a while, or none. Each collective calls it for its own stream before
  /// and after the exchange, and for the stream that is current now, on which the program computes. Random
  /// lengths make it likely that a missing wait between streams shows as wrong values.
  StagedCommunicator(std::shared_ptr<Communicator> control, std::shared_ptr<Device> device,
                     std::function<void()> delay = {});

  std::unique_ptr<Notices> open_notices() override;
  int64_t scratch_bytes() const override { return control_->scratch_bytes(); }

 private:
  std::shared_ptr<Communicator> make_part(const std::vector<RankGroup>& groups, size_t own,
                                          RankGroup group) override;

  // Page-locked memory of one stream, in bytes. Kept for later collectives on the stream: it may be written
  // again when the copy to the host of such a collective is complete, because a stream runs its copies in
  // order.
  struct Staging {
    at::Tensor input;
    at::Tensor output;
    Event copied;  // passes when `input` has a collective's values
  };

  std::unique_ptr<Work> start(CollectiveCall call) override;
  /// A send waits for its copy to the host, but not for its receiver. A receive copies in wait(), on the
  /// stream that is current then.
  std::unique_ptr<Work> start_message(MessageCall call) override;
  void open_group() override { grouping_ = true; }
  void close_group(bool abandoned) override;

  void run(const CollectiveCall& call);
  void delay_stream(StreamId stream);
  at::Tensor staged(at::Tensor& memory, const at::Tensor& like);

  std::shared_ptr<Device> owned_device_;
  std::shared_ptr<Communicator> control_;
  std::function<void()> delay_;
  StreamId compute_;
  std::map<StreamId, Staging> staging_;
  bool grouping_ = false;
  std::vector<CollectiveCall> held_back_;  // calls that the open group holds back
};

}  // namespace zerorun::testing
