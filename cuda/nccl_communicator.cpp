#include "cuda/nccl_communicator.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/deadline.h"
#include "cuda/cuda_check.h"
#include "cuda/nccl_environment.h"
#include "cuda/nccl_library.h"
#include "cuda/nccl_memory.h"
#include "cuda/peers.h"
#include "cuda/store_courier.h"

namespace zerorun {
namespace {

// The maximum number of GPU blocks of a collective if ranks share a GPU. With this limit two ranks can run
// two collectives each on the GPU at once.
constexpr int kBlocksOnSharedGpu = 8;
constexpr char kIdsKey[] = "ids";

class NcclWork : public Work {
 public:
  explicit NcclWork(std::shared_ptr<const NcclWatchdog> watchdog) : watchdog_(std::move(watchdog)) {}

  void wait() override {
    if (watchdog_) watchdog_->check();
  }

 private:
  std::shared_ptr<const NcclWatchdog> watchdog_;
};

// A receive, which is enqueued when its sender has announced it ([Note: messages on GPUs]).
class NcclReceive : public Work {
 public:
  NcclReceive(std::shared_ptr<NcclMessages> messages, MessageCall call,
              std::shared_ptr<const NcclWatchdog> watchdog)
      : messages_(std::move(messages)),
        call_(std::move(call)),
        watchdog_(std::move(watchdog)),
        announcement_(messages_->announce(call_)) {}

  void wait() override {
    announcement_->wait();
    watchdog_->check();
    messages_->take(call_);
  }

 private:
  std::shared_ptr<NcclMessages> messages_;
  MessageCall call_;
  std::shared_ptr<const NcclWatchdog> watchdog_;
  std::unique_ptr<Work> announcement_;
};

std::string pci_address(int device) {
  char address[32] = {};
  ZR_CUDA(cudaDeviceGetPCIBusId(address, sizeof address, device));
  return address;
}

bool agree(const std::vector<Peer>& peers, bool Peer::*what) {
  return std::ranges::all_of(peers, [&](const Peer& peer) { return peer.*what; });
}

}  // namespace

NcclCommunicator::NcclCommunicator(const Environment& environment, std::shared_ptr<CudaDevice> device,
                                   std::shared_ptr<Communicator> control, const StorePointer& store,
                                   bool shares_gpu)
    : Communicator(environment.rank, environment.world_size, environment.timeout, *device),
      owned_device_(std::move(device)),
      control_(std::move(control)),
      store_(store),
      shares_gpu_(shares_gpu) {
  if (const RankGroup& group = control_->group_of_ranks(); !group.name.empty()) set_group(group);
  if (world_size() == 1) return;
  try {
    connect(store);
  } catch (...) {
    disconnect(false);
    throw;
  }
}

void NcclCommunicator::connect(const StorePointer& store) {
  const int device = owned_device_->location().index();
  const NcclFeatures features = loaded_nccl();
  Peer mine = this_machine();
  mine.gpu = pci_address(device);
  mine.nccl_version = features.version;
  mine.several_communicators = nccl_orders_launches();
  mine.registration = nccl_registration(features);
  mine.nccl_mem_alloc = mine.registration == NcclRegistration::none || nccl_has_memory();
  const std::vector<Peer> peers = exchange_peers(*control_, mine);
  shares_gpu_ = check_peers(peers, features) || shares_gpu_;
  orders_launches_ = agree(peers, &Peer::several_communicators);
  // Ranks that share a GPU do not register memory, because NCCL does not document whether they may.
  if (!shares_gpu_ && agree(peers, &Peer::nccl_mem_alloc)) registration_ = mine.registration;
  if (rank() == 0 && registration_ != mine.registration) {
    log_warning(std::string("no memory is registered with NCCL, although ZERORUN_NCCL_REGISTER=") +
                name_of(mine.registration) + ": " +
                (shares_gpu_ ? "ranks share a GPU" : "ncclMemAlloc() does not work on every rank"));
  }

  // In a group, ranks have other numbers here than on the board of `control`.
  const StorePointer board = group_of_ranks().name.empty() ? store : store->part("nccl");
  comms_ = std::make_shared<NcclComms>(device);
  probe_ = std::make_unique<StreamProbe>(device, comms_);
  watchdog_ = std::make_shared<NcclWatchdog>(
      WatchdogOptions{
          .rank = rank(), .world_size = world_size(), .ranks = group_of_ranks().ranks, .timeout = timeout()},
      *probe_, std::make_unique<StoreCourier>(std::make_shared<WaitBoard>(board, rank()), world_size()));
  check_ = owned_device_->streams().add_check([watchdog = watchdog_] { watchdog->check(); });
  watchdog_->start();
  const auto ids = agree_on_ids(store, orders_launches_ ? 2 : 1);
  const size_t slot = watchdog_->begin_on_host("connecting over NCCL");
  const NcclSetup setup = {.rank = rank(),
                           .world_size = world_size(),
                           .most_blocks = shares_gpu_ ? kBlocksOnSharedGpu : 0,
                           .blocking = registration_ == NcclRegistration::none};
  comms_->connect(ids, setup, *watchdog_, slot);
  watchdog_->end(slot);
  messages_ = std::make_shared<NcclMessages>(
      NcclMessages::Home{.communicator = *this,
                         .control = *control_,
                         .watchdog = *watchdog_,
                         .probe = *probe_,
                         .current_stream = [this] { return current_stream(); }},
      device, setup);
}

std::shared_ptr<Communicator> NcclCommunicator::make_part(const std::vector<RankGroup>& groups, size_t own,
                                                          RankGroup /*group*/) {
  check_launch_order("groups of ranks");
  const std::shared_ptr<Communicator> control = control_->split(groups);
  Environment environment;
  environment.rank = control->rank();
  environment.world_size = control->world_size();
  environment.timeout = timeout();
  const std::string name = "group" + std::to_string(splits_++) + "-" + std::to_string(own);
  const StorePointer part = store_ ? store_->part(name) : nullptr;
  return std::make_shared<NcclCommunicator>(environment, owned_device_, control, part, shares_gpu_);
}

void NcclCommunicator::check_launch_order(const std::string& what) const {
  if (orders_launches_) return;
  throw UserError(what +
                  " on GPUs need NCCL_LAUNCH_ORDER_IMPLICIT=1 on every rank, without which several NCCL "
                  "communicators may block each other: do not set it to 0");
}

// Rank 0 makes the ids of all pairs. Each rank connects its pairs in the order of the list, which is the same
// on all ranks: so no two wait for each other.
void NcclCommunicator::open_messages(const std::vector<std::pair<int, int>>& pairs) {
  if (world_size() == 1 || pairs.empty()) return;
  check_launch_order("messages");
  const size_t count = pairs.size() * NcclMessages::kDirections;
  NcclComms::Ids ids = rank() == 0 ? NcclComms::make_ids(count) : NcclComms::Ids(count);
  const auto bytes = static_cast<int64_t>(count * sizeof(ncclUniqueId));
  at::Tensor packed = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(packed.mutable_data_ptr(), ids.data(), packed.nbytes());
  control_->broadcast(packed, 0, "the ids for messages over NCCL")->wait();
  std::memcpy(ids.data(), packed.const_data_ptr(), packed.nbytes());
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [one, two] = pairs[i];
    if (one != rank() && two != rank()) continue;
    const int other = one == rank() ? two : one;
    ZR_CHECK(other != rank() && other >= 0 && other < world_size(), std::to_string(other));
    if (messages_->is_connected(other)) continue;
    const auto first = ids.begin() + static_cast<ptrdiff_t>(i * NcclMessages::kDirections);
    messages_->connect(other, NcclComms::Ids(first, first + NcclMessages::kDirections));
  }
}

NcclComms::Ids NcclCommunicator::agree_on_ids(const StorePointer& store, size_t count) const {
  const StorePointer part = store->part("nccl");
  const Deadline deadline(timeout());
  NcclComms::Ids ids(count);
  const size_t bytes = count * sizeof(ncclUniqueId);
  std::string packed(bytes, '\0');
  if (rank() == 0) {
    ids = NcclComms::make_ids(count);
    std::memcpy(packed.data(), ids.data(), bytes);
    part->set(kIdsKey, packed, deadline);
    return ids;
  }
  try {
    const auto answer = part->await(kIdsKey, deadline);
    if (!answer) throw CommError("it has not published how to connect");
    packed = *answer;
  } catch (const CommError& error) {
    throw CommError("rank " + std::to_string(rank_in_job(0)) + " did not start NCCL: " + error.what());
  }
  ZR_CHECK(packed.size() == bytes, std::to_string(packed.size()));
  std::memcpy(ids.data(), packed.data(), bytes);
  return ids;
}

// Does not wait for other ranks if an exception is propagating.
NcclCommunicator::~NcclCommunicator() {
  disconnect(std::uncaught_exceptions() == 0);
}

void NcclCommunicator::disconnect(bool in_peace) {
  if (!watchdog_) return;
  owned_device_->streams().remove_check(check_);
  watchdog_->stop();
  if (in_peace && !watchdog_->broken()) {
    if (messages_) messages_->close();
    comms_->close();
  } else {
    probe_->abort();
  }
}

at::Tensor NcclCommunicator::allocate(int64_t numel, at::ScalarType dtype) {
  const auto bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  if (registration_ == NcclRegistration::none || bytes < kSmallestNcclMemory)
    return device().allocate(numel, dtype);
  watchdog_->check();
  current_stream();  // throws if another GPU is the thread's current one
  NcclMemory memory(device().location(), bytes, comms_);
  const size_t slot = watchdog_->begin_on_host("allocation of " + std::to_string(bytes) + " bytes");
  comms_->register_memory(memory.get(), bytes, registration_ == NcclRegistration::windows, *watchdog_, slot);
  watchdog_->end(slot);
  return std::move(memory).as_tensor(numel, dtype);
}

std::unique_ptr<Work> NcclCommunicator::start(CollectiveCall call) {
  if (watchdog_) watchdog_->check();
  if (call.input.is_cpu()) return start_on_cpu(std::move(call));
  if (world_size() == 1) {
    copy_to_self(call);
  } else if (call.input.numel() > 0) {
    if (grouping_) {
      held_back_.push_back(std::move(call));
    } else {
      issue({&call, 1});
    }
  }
  return std::make_unique<NcclWork>(watchdog_);
}

std::unique_ptr<Work> NcclCommunicator::start_message(MessageCall call) {
  if (watchdog_) watchdog_->check();
  if (call.tensor.is_cpu()) {
    return call.is_send ? control_->send(call.tensor, call.receiver, call.label)
                        : control_->receive(call.tensor, call.sender, call.label);
  }
  if (call.is_send) return messages_->send(call);
  return std::make_unique<NcclReceive>(messages_, std::move(call), watchdog_);
}

std::unique_ptr<Work> NcclCommunicator::start_on_cpu(CollectiveCall call) {
  switch (call.kind) {
    case Collective::reduce_scatter:
      return control_->reduce_scatter(call.output, call.input, call.label);
    case Collective::all_gather:
      return control_->all_gather(call.output, call.input, call.label, call.reason);
    case Collective::all_reduce:
      return control_->all_reduce(call.output, call.label);
    case Collective::broadcast:
      return control_->broadcast(call.output, call.root, call.label);
    case Collective::barrier:
      break;
  }
  return control_->barrier(call.label);
}

cudaStream_t NcclCommunicator::current_stream() const {
  CudaStreams& streams = owned_device_->streams();
  return streams.handle(streams.current());
}

// A collective with a single rank is a copy.
void NcclCommunicator::copy_to_self(const CollectiveCall& call) {
  const void* from = call.input.const_data_ptr();
  void* to = call.output.mutable_data_ptr();
  if (to == from || call.output.numel() == 0) return;
  ZR_CUDA(cudaMemcpyAsync(to, from, call.output.nbytes(), cudaMemcpyDeviceToDevice, current_stream()));
}

void NcclCommunicator::issue(std::span<const CollectiveCall> calls) {
  const auto operation = comms_->operate();
  const cudaStream_t stream = current_stream();
  const size_t slot = watchdog_->take();
  probe_->record_before(slot, stream);
  watchdog_->begin(slot, calls, stream);
  comms_->issue(calls, stream, *watchdog_, slot);
  probe_->record_after(slot, stream);
  watchdog_->enqueued(slot);
}

void NcclCommunicator::open_group() {
  ZR_CHECK(!grouping_, "a group in a group");
  grouping_ = true;
}

void NcclCommunicator::close_group(bool abandoned) {
  grouping_ = false;
  std::vector<CollectiveCall> calls;
  calls.swap(held_back_);
  if (!abandoned && !calls.empty()) issue(calls);
  calls.clear();
  held_back_.swap(calls);  // keeps the capacity of the vector
}

}  // namespace zerorun
