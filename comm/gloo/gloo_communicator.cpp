// The gloo/*.h headers come from comm/gloo/gloo_declarations.
#define USE_C10D_GLOO 1
#include "comm/gloo/gloo_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "base/error.h"
#include "base/fnv1a.h"
#include "base/process.h"
#include "base/route.h"
#include "comm/deadline.h"
#include "comm/gloo/order_watch.h"
#include "comm/meeting/exchange.h"
#include "comm/meeting/store_notices.h"
#include "comm/meeting/wait_board.h"
#include "comm/rank_order_sum.h"

namespace zerorun {
namespace {

// The longest time that the destructor of a Work waits if wait() was not called.
constexpr std::chrono::milliseconds kPatienceWithDropped(10'000);

using Gloo = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using Message = c10::intrusive_ptr<c10d::Work>;

// Receive buffers, which are kept for reuse. Their count never exceeds the largest count that was in use at
// the same time.
class Scratch {
 public:
  at::Tensor take(int64_t numel, at::ScalarType dtype) {
    std::lock_guard lock(mutex_);
    const int64_t wanted = numel * static_cast<int64_t>(c10::elementSize(dtype));
    auto best = free_.end();
    auto largest = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (largest == free_.end() || it->numel() > largest->numel()) largest = it;
      if (it->numel() >= wanted && (best == free_.end() || it->numel() < best->numel())) best = it;
    }
    at::Tensor bytes;
    if (best != free_.end()) {
      bytes = std::move(*best);
      free_.erase(best);
    } else {
      if (largest != free_.end()) {  // all are too small: a new one replaces the largest
        bytes_ -= largest->numel();
        free_.erase(largest);
      }
      bytes = at::empty({wanted}, at::TensorOptions().dtype(at::kByte));
      bytes_ += wanted;
    }
    return bytes.narrow(0, 0, wanted).view(dtype);
  }

  void give_back(const at::Tensor& tensor) {
    std::lock_guard lock(mutex_);
    const int64_t capacity = static_cast<int64_t>(tensor.storage().nbytes());
    at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte));
    free_.push_back(bytes.set_(tensor.storage(), 0, {capacity}, {1}));
  }

  int64_t bytes() const { return bytes_; }

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> free_;  // each covers its whole storage, as bytes
  int64_t bytes_ = 0;
};

class GlooWork : public Work {
 public:
  GlooWork(Gloo group, std::shared_ptr<Scratch> scratch, std::shared_ptr<WaitBoard> wait_board,
           std::shared_ptr<OrderWatch> order, CollectiveCall call, int tag, std::chrono::milliseconds timeout)
      : group_(std::move(group)),
        scratch_(std::move(scratch)),
        wait_board_(std::move(wait_board)),
        order_(std::move(order)),
        call_(std::move(call)),
        tag_(tag),
        number_(order_->count(call_.kind)),
        timeout_(timeout) {
    rank_ = group_->getRank();
    world_size_ = group_->getSize();
    start();
  }

  // Waits for the messages, because an unfinished message would block later messages.
  ~GlooWork() override {
    if (wait_board_->broken()) return;
    timeout_ = std::min(timeout_, kPatienceWithDropped);
    try {
      const Deadline deadline(timeout_);
      finish(receives_, deadline, nullptr);
      finish(sends_, deadline, nullptr);
    } catch (const std::exception&) {
      // The next wait() reports the error.
    }
  }

  void wait() override {
    const Deadline deadline(timeout_);
    {
      OrderWatch::Wait wait(*order_, call_, number_, [this] { stop(); });
      finish(receives_, deadline, &wait);
      finish(sends_, deadline, &wait);
    }
    receives_.clear();
    sends_.clear();
    if (!received_.defined()) return;
    std::vector<const void*> slices;
    for (int rank = 0; rank < world_size_; ++rank) {
      slices.push_back(rank == rank_ ? own_.const_data_ptr() : received_slot(rank).const_data_ptr());
    }
    sum_in_rank_order(call_.output, slices);
    scratch_->give_back(std::exchange(received_, at::Tensor()));
  }

 private:
  struct PeerMessage {
    int rank;
    Message message;      // null if it could not be posted
    std::string failure;  // why it could not be posted
  };

  // Posts receives before sends, because Gloo sends a message only once its receiver expects it.
  void start() {
    switch (call_.kind) {
      case Collective::reduce_scatter:
        receive_to_sum(call_.input.narrow(0, rank_ * call_.output.numel(), call_.output.numel()));
        for_each_peer([&](int peer) {
          send(peer, call_.input.narrow(0, peer * call_.output.numel(), call_.output.numel()));
        });
        break;
      case Collective::all_gather: {
        const int64_t slice = call_.input.numel();
        for_each_peer([&](int peer) { receive(peer, call_.output.narrow(0, peer * slice, slice)); });
        for_each_peer([&](int peer) { send(peer, call_.input); });
        at::Tensor own = call_.output.narrow(0, rank_ * slice, slice);
        if (own.const_data_ptr() != call_.input.const_data_ptr()) own.copy_(call_.input);
        break;
      }
      case Collective::all_reduce:
      case Collective::barrier:
        receive_to_sum(call_.input);
        for_each_peer([&](int peer) { send(peer, call_.input); });
        break;
      case Collective::broadcast:
        if (rank_ == call_.root) {
          for_each_peer([&](int peer) { send(peer, call_.input); });
        } else {
          receive(call_.root, call_.output);
        }
        break;
    }
  }

  void receive_to_sum(at::Tensor own) {
    own_ = std::move(own);
    received_ = scratch_->take(own_.numel() * (world_size_ - 1), own_.scalar_type());
    for_each_peer([&](int peer) { receive(peer, received_slot(peer)); });
  }

  at::Tensor received_slot(int peer) const {
    return received_.narrow(0, (peer < rank_ ? peer : peer - 1) * own_.numel(), own_.numel());
  }

  template <typename Body>
  void for_each_peer(Body body) {
    for (int step = 1; step < world_size_; ++step) body((rank_ + step) % world_size_);
  }

  void send(int peer, at::Tensor tensor) {
    if (tensor.numel() == 0) return;
    std::vector<at::Tensor> tensors{std::move(tensor)};
    sends_.push_back(post(peer, [&] { return group_->send(tensors, peer, tag_); }));
  }

  void receive(int peer, at::Tensor tensor) {
    if (tensor.numel() == 0) return;
    std::vector<at::Tensor> tensors{std::move(tensor)};
    receives_.push_back(post(peer, [&] { return group_->recv(tensors, peer, tag_); }));
  }

  // Starts a message. Does not throw if the connection is already lost: wait() then reports the error.
  template <typename Start>
  static PeerMessage post(int peer, Start start) {
    try {
      return {peer, start(), ""};
    } catch (const std::exception& error) {
      return {peer, nullptr, first_line(error.what())};
    }
  }

  // Returns why the message failed; empty if it was transferred.
  static std::string failure_of(PeerMessage& posted, std::chrono::milliseconds timeout) {
    if (!posted.message) return posted.failure;
    try {
      if (posted.message->wait(timeout)) return "";
      // stop() has ended the wait. A wait that misses its deadline makes Gloo close this rank's connections,
      // so the ranks that wait for this one fail too.
      return posted.message->wait(std::chrono::milliseconds(1)) ? "" : "stopped";
    } catch (const std::exception& error) {
      return first_line(error.what());
    }
  }

  // Makes wait() end: its messages are given up.
  void stop() {
    for (const auto* messages : {&receives_, &sends_}) {
      for (const PeerMessage& posted : *messages) {
        if (posted.message) posted.message->abort();
      }
    }
  }

  // Checks every message even after a failure, so that the error names all missing ranks. If a connection is
  // lost, the error does not name ranks that are merely late (Gloo reports a timeout for these).
  void finish(std::vector<PeerMessage>& messages, const Deadline& deadline, const OrderWatch::Wait* wait) {
    std::vector<int> lost;
    std::vector<int> late;
    std::string reason;
    for (PeerMessage& posted : messages) {
      const bool first = lost.empty() && late.empty();
      const std::string failure =
          failure_of(posted, first ? deadline.remaining() : std::chrono::milliseconds(1));
      if (failure.empty()) continue;
      const bool timed_out =
          failure.find("Timed out") != std::string::npos || failure.find("timeout") != std::string::npos;
      (timed_out ? late : lost).push_back(posted.rank);
      if (!timed_out && reason.empty()) reason = failure;
    }
    if (lost.empty() && late.empty()) return;
    wait_board_->mark_broken();
    if (const std::string error = wait ? wait->disagreement() : ""; !error.empty()) {
      wait_board_->publish_failed(call_);
      throw CommError(error);
    }
    std::vector<int> absent = lost;
    absent.insert(absent.end(), late.begin(), late.end());
    if (auto disagreement = wait_board_->disagreement(call_, absent)) throw CommError(*disagreement);
    const std::string what = describe(call_);
    if (!lost.empty()) {
      throw CommError(what + ": lost the connection to " + name_ranks(lost) + ", which has probably ended (" +
                      reason + ")");
    }
    throw CommError(missed_deadline(what, late, timeout_));
  }

  Gloo group_;
  std::shared_ptr<Scratch> scratch_;
  std::shared_ptr<WaitBoard> wait_board_;
  std::shared_ptr<OrderWatch> order_;
  CollectiveCall call_;
  int tag_;
  uint64_t number_;
  std::chrono::milliseconds timeout_;
  int rank_ = 0;
  int world_size_ = 0;
  std::vector<PeerMessage> sends_;
  std::vector<PeerMessage> receives_;
  at::Tensor own_;       // this rank's addend
  at::Tensor received_;  // the other ranks' addends, in rank order
};

// A forked child has copies of its parent's works, but no thread that transfers messages. A child that waited
// for such a copy or destroyed it would disturb the parent. So wait() throws in a child, and a child never
// destroys its copy of `work_`.
class WorkOfThisProcess : public Work {
 public:
  WorkOfThisProcess(std::shared_ptr<GlooWork> work, int rank)
      : rank_(rank), work_(kept_by_forks(std::move(work))) {}

  void wait() override {
    check_not_forked(home_, rank_, "a collective");
    work_->wait();
  }

 private:
  HomeProcess home_;
  int rank_;
  std::shared_ptr<GlooWork> work_;
};

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(Gloo group, const StorePointer& store, std::chrono::milliseconds timeout)
      : Communicator(group->getRank(), group->getSize(), timeout),
        group_(std::move(group)),
        wait_board_(std::make_shared<WaitBoard>(store, group_->getRank())),
        order_(kept_by_forks(std::make_shared<OrderWatch>(store, group_->getRank(), group_->getSize()))),
        store_(store) {}

  std::unique_ptr<Notices> open_notices() override { return make_notices(store_, boards_++); }
  int64_t scratch_bytes() const override { return scratch_->bytes(); }

 private:
  std::unique_ptr<Work> start(CollectiveCall call) override {
    const int tag = tag_of(call);
    return std::make_unique<WorkOfThisProcess>(
        std::make_shared<GlooWork>(group_, scratch_, wait_board_, order_, std::move(call), tag, timeout()),
        rank());
  }

  // A tag contains the number of the collective, its kind and a hash. The number has 9 bits, because it must
  // differ only between collectives of one kind that are in flight. The hash covers the sizes and labels of
  // all collectives of this kind so far. So ranks that are out of step do not receive each other's messages,
  // and report an error at their deadline. If different histories have the same 19 bits of hash by chance,
  // the hashes at the next collective almost certainly differ.
  int tag_of(const CollectiveCall& call) {
    const auto kind = static_cast<size_t>(call.kind);
    const int number = number_[kind] = (number_[kind] + 1) & 0x1ff;
    uint64_t& history = history_[kind];
    history = fnv1a(fnv1a(history, static_cast<uint64_t>(call.input.numel())), call.label);
    return number << 22 | static_cast<int>(kind) << 19 |
           static_cast<int>(history * 0x9e3779b97f4a7c15ULL >> 45);
  }

  Gloo group_;
  std::shared_ptr<WaitBoard> wait_board_;
  std::shared_ptr<OrderWatch> order_;
  StorePointer store_;
  int boards_ = 0;
  std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
  std::array<int, kCollectiveKinds> number_{};
  std::array<uint64_t, kCollectiveKinds> history_{};
};

// Returns the address by which other hosts reach this rank. All ranks must call this, because it compares the
// routes of all ranks to MASTER_ADDR.
std::string address_for_other_hosts(const Environment& environment, const JobStore& store,
                                    const Deadline& deadline) {
  const Route own = route_to(environment.master_addr);
  std::vector<Route> routes;
  for (const std::string& word : exchange_words(store, "route", environment.rank, environment.world_size,
                                                own.local + " " + own.remote, deadline)) {
    const size_t space = word.find(' ');
    routes.push_back({word.substr(0, space), word.substr(space + 1)});
  }
  return reachable_address(routes, environment.rank);
}

std::shared_ptr<::gloo::transport::Device> choose_device(const std::string& address) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  return c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

}  // namespace

std::shared_ptr<Communicator> make_gloo_communicator(const Environment& environment,
                                                     const StorePointer& store, const Deadline& deadline) {
  auto options = c10d::ProcessGroupGloo::Options::create(deadline.remaining());
  options->threads = 1;
  const std::string address =
      environment.one_host ? environment.master_addr : address_for_other_hosts(environment, *store, deadline);
  try {
    options->devices.push_back(choose_device(address));
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
        store->part("gloo")->for_c10d(deadline), environment.rank, environment.world_size, options);
    return std::make_shared<GlooCommunicator>(std::move(group), store, environment.timeout);
  } catch (const std::exception& error) {
    throw CommError("rank " + std::to_string(environment.rank) + " could not connect to the other ranks: " +
                    first_line(error.what()) + " (GLOO_SOCKET_IFNAME names the network interface to use)");
  }
}

}  // namespace zerorun
