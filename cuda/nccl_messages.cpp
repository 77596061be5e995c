#include "cuda/nccl_messages.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/deadline.h"
#include "cuda/cuda_check.h"

namespace zerorun {
namespace {

// What both ranks must agree on, in the label of the empty message that announces the values.
std::string announced(const MessageCall& call) {
  return call.label + ", " + std::to_string(call.tensor.numel()) + " elements of " +
         c10::toString(call.tensor.scalar_type()) + " on a GPU";
}

cudaEvent_t recorded(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  ZR_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  ZR_CUDA(cudaEventRecord(event, stream));
  return event;
}

}  // namespace

NcclMessages::NcclMessages(Home home, int gpu, const NcclSetup& setup)
    : home_(std::move(home)), gpu_(gpu), setup_(setup) {}

NcclMessages::~NcclMessages() {
  for (auto& [other, link] : links_) {
    for (const Sent& sent : link.sent) cudaEventDestroy(sent.over);
    if (link.stream) cudaStreamDestroy(link.stream);
  }
}

void NcclMessages::connect(int other, const NcclComms::Ids& ids) {
  ZR_CHECK(ids.size() == kDirections, std::to_string(ids.size()));
  Link& link = links_[other];
  link.comms = std::make_shared<NcclComms>(gpu_);
  home_.probe.add(link.comms);
  ZR_CUDA(cudaStreamCreateWithFlags(&link.stream, cudaStreamNonBlocking));
  NcclSetup setup = setup_;
  setup.rank = home_.communicator.rank() < other ? 0 : 1;
  setup.world_size = 2;
  const size_t slot = home_.watchdog.begin_on_host("connecting over NCCL for messages with rank " +
                                                   std::to_string(home_.communicator.rank_in_job(other)));
  link.comms->connect(ids, setup, home_.watchdog, slot);
  home_.watchdog.end(slot);
  meet(other, link);
}

// The first message on a communicator connects the ranks, for which both must take part. So one is sent in
// each direction here, and no later send waits for its receiver.
void NcclMessages::meet(int other, Link& link) {
  const int own = home_.communicator.rank();
  const size_t slot = home_.watchdog.begin_on_host("the first messages with rank " +
                                                   std::to_string(home_.communicator.rank_in_job(other)));
  const at::Tensor nothing = home_.communicator.device().allocate(1, at::kByte);
  const auto operation = link.comms->operate();
  for (const bool up : {true, false}) {
    const bool is_send = up == (own < other);
    const MessageCall call{is_send, nothing, is_send ? own : other, is_send ? other : own, "", 0};
    link.comms->issue_message({.tensor = nothing, .is_send = is_send, .is_first = true}, direction(call),
                              link.stream, home_.watchdog, slot);
  }
  home_.watchdog.end(slot);
}

NcclMessages::Link& NcclMessages::link_to(int other) {
  const auto found = links_.find(other);
  if (found != links_.end()) return found->second;
  const Communicator& own = home_.communicator;
  throw UserError(
      "ranks " + std::to_string(own.rank_in_job(own.rank())) + " and " +
      std::to_string(own.rank_in_job(other)) +
      " send each other tensors on GPUs without being connected for that: call open_messages() with "
      "this pair first, on all ranks of the communicator");
}

size_t NcclMessages::direction(const MessageCall& call) const {
  return call.sender < call.receiver ? 0 : 1;
}

std::unique_ptr<Work> NcclMessages::send(const MessageCall& call) {
  Link& link = link_to(call.receiver);
  await_room(call, link);
  auto announcement = home_.control.send(at::empty({0}), call.receiver, announced(call));
  if (call.tensor.numel() == 0) return announcement;
  const cudaStream_t current = home_.current_stream();
  Device& device = home_.communicator.device();
  const at::Tensor values = call.tensor.view({-1});
  at::Tensor copy = device.allocate_on_stream(values.numel(), values.scalar_type());
  device.copy(copy, values);
  const cudaEvent_t copied = recorded(current);
  ZR_CUDA(cudaStreamWaitEvent(link.stream, copied, 0));
  ZR_CUDA(cudaEventDestroy(copied));
  const size_t slot = home_.watchdog.begin_on_host(describe(call, home_.communicator.group_of_ranks().ranks));
  {
    const auto operation = link.comms->operate();
    link.comms->issue_message({.tensor = copy, .is_send = true}, direction(call), link.stream, home_.watchdog,
                              slot);
  }
  home_.watchdog.end(slot);
  link.bytes += call.bytes();
  link.sent.push_back({std::move(copy), recorded(link.stream)});
  return announcement;
}

std::unique_ptr<Work> NcclMessages::announce(const MessageCall& call) {
  link_to(call.sender);
  return home_.control.receive(at::empty({0}), call.sender, announced(call));
}

void NcclMessages::take(const MessageCall& call) {
  if (call.tensor.numel() == 0) return;
  Link& link = link_to(call.sender);
  const cudaStream_t stream = home_.current_stream();
  const auto operation = link.comms->operate();
  const size_t slot = home_.watchdog.take();
  home_.probe.record_before(slot, stream);
  home_.watchdog.begin(slot, describe(call, home_.communicator.group_of_ranks().ranks), stream);
  link.comms->issue_message({.tensor = call.tensor, .is_send = false}, direction(call), stream,
                            home_.watchdog, slot);
  home_.probe.record_after(slot, stream);
  home_.watchdog.enqueued(slot);
}

void NcclMessages::await_room(const MessageCall& call, Link& link) {
  const Deadline deadline(home_.communicator.timeout());
  for (;;) {
    free_transferred(link);
    if (has_room(link.sent.size(), link.bytes, call.bytes())) return;
    home_.watchdog.check();
    if (Deadline::Clock::now() >= deadline.end()) {
      throw CommError(
          missed_deadline(call, home_.communicator.group_of_ranks().ranks, home_.communicator.timeout()));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// A copy is freed on the stream that it came from, whose later work may use the memory at once: the transfer,
// on another stream, is over.
void NcclMessages::free_transferred(Link& link) {
  while (!link.sent.empty() && cudaEventQuery(link.sent.front().over) == cudaSuccess) {
    const Sent& sent = link.sent.front();
    link.bytes -= static_cast<int64_t>(sent.copy.nbytes());
    ZR_CUDA(cudaEventDestroy(sent.over));
    link.sent.pop_front();
  }
  cudaGetLastError();  // of the query, if the event has not passed
}

void NcclMessages::close() {
  for (auto& [other, link] : links_) link.comms->close();
}

}  // namespace zerorun
