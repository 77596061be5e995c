#include "tests/support/staged_communicator.h"

#include <ATen/ops/from_blob.h>

#include <utility>

#include "comm/notices.h"
#include "tests/support/forward_collective.h"

namespace zerorun::testing {

StagedCommunicator::StagedCommunicator(std::shared_ptr<Communicator> control, std::shared_ptr<Device> device,
                                       std::function<void()> delay)
    : Communicator(control->rank(), control->world_size(), control->timeout(), *device),
      owned_device_(std::move(device)),
      control_(std::move(control)),
      delay_(std::move(delay)),
      compute_(owned_device_->streams().current()) {
  set_first_on_host(control_->is_first_on_host());
}

std::unique_ptr<Notices> StagedCommunicator::open_notices() {
  return control_->open_notices();
}

std::shared_ptr<Communicator> StagedCommunicator::make_part(const std::vector<RankGroup>& groups,
                                                            size_t /*own*/, RankGroup group) {
  const auto part = std::make_shared<StagedCommunicator>(control_->split(groups), owned_device_, delay_);
  part->set_group(std::move(group));
  return part;
}

std::unique_ptr<Work> StagedCommunicator::start(CollectiveCall call) {
  if (call.input.device() != device().location()) return forward(*control_, call);
  if (grouping_) {
    held_back_.push_back(std::move(call));
  } else {
    run(call);
  }
  return std::make_unique<Done>();
}

namespace {

// A receive: copies the message from host memory to the device's tensor.
class StagedReceive : public Work {
 public:
  StagedReceive(Device& device, at::Tensor tensor, at::Tensor on_host, std::unique_ptr<Work> work)
      : device_(device), tensor_(std::move(tensor)), on_host_(std::move(on_host)), work_(std::move(work)) {}

  void wait() override {
    work_->wait();
    if (tensor_.numel() == 0) return;
    Event copied;
    Streams& streams = device_.streams();
    device_.copy(tensor_.view({-1}), on_host_);
    streams.record(copied, streams.current());
    streams.await(copied, std::chrono::minutes(1), "the copy of a message");
  }

 private:
  Device& device_;
  at::Tensor tensor_;
  at::Tensor on_host_;
  std::unique_ptr<Work> work_;
};

}  // namespace

std::unique_ptr<Work> StagedCommunicator::start_message(MessageCall call) {
  if (call.tensor.device() != device().location()) return forward(*control_, call, call.tensor);
  const at::Tensor values = call.tensor.view({-1});
  at::Tensor on_host = device().allocate_on_host(values.numel(), values.scalar_type());
  if (!call.is_send) {
    auto work = forward(*control_, call, on_host);
    return std::make_unique<StagedReceive>(device(), call.tensor, std::move(on_host), std::move(work));
  }
  if (values.numel() > 0) {
    Event copied;
    Streams& streams = device().streams();
    device().copy(on_host, values);
    streams.record(copied, streams.current());
    streams.await(copied, timeout(), "the copy to the host for send of " + call.label);
  }
  return forward(*control_, call, on_host);
}

void StagedCommunicator::close_group(bool abandoned) {
  grouping_ = false;
  for (const CollectiveCall& call : std::exchange(held_back_, {})) {
    if (!abandoned) run(call);
  }
}

void StagedCommunicator::run(const CollectiveCall& call) {
  if (call.input.numel() == 0) return;  // on every rank
  Streams& streams = device().streams();
  const StreamId stream = streams.current();
  delay_stream(compute_);
  delay_stream(stream);

  Staging& staging = staging_[stream];
  CollectiveCall on_host = call;
  on_host.input = staged(staging.input, call.input);
  // A collective with one tensor for input and output has one on the host too.
  const bool in_place = call.output.is_same(call.input);
  on_host.output = in_place ? on_host.input : staged(staging.output, call.output);
  device().copy(on_host.input, call.input);
  streams.record(staging.copied, stream);
  streams.await(staging.copied, timeout(), "the copy to the host for " + describe(call));
  forward(*control_, on_host)->wait();

  delay_stream(stream);
  device().copy(call.output, on_host.output);
}

void StagedCommunicator::delay_stream(StreamId stream) {
  if (!delay_) return;
  Streams& streams = device().streams();
  const StreamId outer = streams.current();
  streams.set_current(stream);
  delay_();
  streams.set_current(outer);
}

// A tensor like `like` at the begin of `memory`, which is replaced if it is too small. The tensor does not
// own the memory: `control_` may let it go later, in another thread.
at::Tensor StagedCommunicator::staged(at::Tensor& memory, const at::Tensor& like) {
  const auto bytes = static_cast<int64_t>(like.nbytes());
  if (!memory.defined() || memory.numel() < bytes) {
    memory.reset();  // first, so that both are never held
    memory = device().allocate_on_host(bytes, at::kByte);
  }
  return at::from_blob(memory.mutable_data_ptr(), {like.numel()}, at::TensorOptions().dtype(like.dtype()));
}

}  // namespace zerorun::testing
