#include "comm/shared_memory/shared_memory_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/fnv1a.h"
#include "comm/meeting/store_notices.h"
#include "comm/shared_memory/rank_transfers.h"
#include "comm/thread_communicator.h"

namespace zerorun {
namespace {

// The size in bytes from which allocate() places a tensor in the arena. A smaller tensor is not worth a page
// of its own there, and is copied when it is sent.
constexpr int64_t kSmallestShared = 4096;
constexpr int64_t kNowhere = -1;

// The number of the group of all ranks of the host.
constexpr uint64_t kAllRanks = 0;

RankGroup group_of(const RanksOfHost& ranks) {
  RankGroup group{.name = "ranks of a host", .ranks = std::vector<int>(static_cast<size_t>(ranks.count))};
  std::iota(group.ranks.begin(), group.ranks.end(), ranks.first);
  return group;
}

class SharedMemoryWork : public Work {
 public:
  SharedMemoryWork(std::shared_ptr<GroupUse> use, std::shared_ptr<SharedTransfers::Transfer> transfer,
                   int rank)
      : rank_(rank), use_(std::move(use)), transfer_(std::move(transfer)) {}

  void wait() override {
    check_not_forked(home_, rank_, "a collective");  // a forked child must not act for its parent
    use_->group.wait(*transfer_);
  }
  bool is_over() override { return use_->group.is_over(*transfer_); }

 private:
  HomeProcess home_;
  int rank_;
  std::shared_ptr<GroupUse> use_;
  std::shared_ptr<SharedTransfers::Transfer> transfer_;
};

class SharedMessageWork : public Work {
 public:
  /// `receipt`: null for a send, which is over when it has started. `other`: the other rank.
  SharedMessageWork(std::shared_ptr<GroupUse> use, std::shared_ptr<SharedMessages::Receipt> receipt, int rank,
                    int other)
      : rank_(rank), other_(other), use_(std::move(use)), receipt_(std::move(receipt)) {}

  void wait() override {
    check_not_forked(home_, rank_, "a message");
    SharedMessages& messages = use_->group.messages();
    return receipt_ ? messages.wait(*receipt_) : messages.check(other_);
  }

 private:
  HomeProcess home_;
  int rank_;
  int other_;
  std::shared_ptr<GroupUse> use_;
  std::shared_ptr<SharedMessages::Receipt> receipt_;
};

class SharedMemoryCommunicator : public Communicator {
 public:
  /// Of all ranks of the host.
  SharedMemoryCommunicator(const RanksOfHost& ranks, std::chrono::milliseconds timeout,
                           std::unique_ptr<HostRanks> opened, StorePointer store)
      : Communicator(ranks.rank - ranks.first, ranks.count, timeout), store_(std::move(store)) {
    if (ranks.count < ranks.world_size) set_group(group_of(ranks));
    auto all = std::make_shared<RankTransfers>(std::move(opened));
    char* control = all->host().control.data() + RankBoard::bytes(ranks.world_size);
    use_ = use_of(std::move(all), {.id = kAllRanks, .rank = rank(), .ranks = group_of_ranks().ranks}, control,
                  timeout);
  }
  /// Of a part of the ranks.
  SharedMemoryCommunicator(std::shared_ptr<RankTransfers> all, RankGroup ranks, SharedTransfers::Group group,
                           std::chrono::milliseconds timeout, StorePointer store)
      : Communicator(group.rank, static_cast<int>(ranks.ranks.size()), timeout), store_(std::move(store)) {
    set_group(std::move(ranks));
    char* control = static_cast<char*>(group.memory.mutable_data_ptr());
    use_ = use_of(std::move(all), std::move(group), control, timeout);
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    if (numel * static_cast<int64_t>(c10::elementSize(dtype)) >= kSmallestShared) {
      if (std::optional<at::Tensor> tensor = host().arena->allocate(numel, dtype)) return *tensor;
    }
    return device().allocate(numel, dtype);
  }

  at::Tensor allocate_shared(int64_t numel, at::ScalarType dtype) override {
    const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
    at::Tensor place = at::empty({1}, at::kLong);
    int64_t& offset = *place.mutable_data_ptr<int64_t>();
    if (rank() == 0) offset = host().blocks->reserve(bytes, world_size()).value_or(kNowhere);
    broadcast(place, 0, "the place of shared memory")->wait();
    return offset == kNowhere ? at::Tensor() : host().blocks->open(offset, numel, dtype, use_->group.id());
  }
  at::Tensor make_own(const at::Tensor& shared) override {
    host().blocks->make_own(shared);
    return shared;
  }
  void give_back_pages(const at::Tensor& part) override { host().blocks->give_back_pages(part); }
  bool shares_memory() const override { return true; }
  bool is_shared(const at::Tensor& tensor) const override {
    return host().blocks->contains(tensor.const_data_ptr(), tensor.nbytes(), use_->group.id());
  }

  void announce_failure(const std::string& error) noexcept override {
    use_->rank->board().announce_failure(error);
  }

  std::string announced_failure() noexcept override { return use_->rank->announced_failure(); }

  std::unique_ptr<Notices> open_notices() override { return make_notices(store_, boards_++); }
  int64_t scratch_bytes() const override { return use_->rank->scratch().bytes(); }

 private:
  static std::shared_ptr<GroupUse> use_of(std::shared_ptr<RankTransfers> all, SharedTransfers::Group group,
                                          char* control, std::chrono::milliseconds timeout) {
    SharedTransfers& added =
        all->add(std::make_unique<SharedTransfers>(*all, std::move(group), control, timeout));
    return std::make_shared<GroupUse>(std::move(all), added);
  }

  HostRanks& host() const { return use_->rank->host(); }

  std::unique_ptr<Work> start(CollectiveCall call) override {
    return std::make_unique<SharedMemoryWork>(use_, use_->group.start(std::move(call)), rank_in_job(rank()));
  }

  std::unique_ptr<Work> start_message(MessageCall call) override {
    SharedMessages& messages = use_->group.messages();
    const int other = call.other();
    std::shared_ptr<SharedMessages::Receipt> receipt;
    if (call.is_send) {
      messages.send(call);
    } else {
      receipt = messages.receive(std::move(call));
    }
    return std::make_unique<SharedMessageWork>(use_, std::move(receipt), rank_in_job(rank()), other);
  }

  // The first rank of each group reserves the group's control block among the blocks that ranks share.
  std::shared_ptr<Communicator> make_part(const std::vector<RankGroup>& groups, size_t own,
                                          RankGroup group) override {
    const uint64_t id = fnv1a(fnv1a(fnv1a(kFnv1aStart, use_->group.id()), splits_++), uint64_t{own});
    const std::vector<int>& ranks = groups[own].ranks;
    const auto place = std::ranges::find(ranks, rank());
    const auto bytes = static_cast<int64_t>(SharedTransfers::control_bytes(static_cast<int>(ranks.size())));
    at::Tensor offset = at::zeros({1}, at::kLong);
    if (place == ranks.begin() && ranks.size() > 1) {
      const auto reserved = host().blocks->reserve(bytes, static_cast<int>(ranks.size()));
      offset.fill_(reserved.value_or(kNowhere));
    }
    at::Tensor offsets = at::empty({world_size()}, at::kLong);
    all_gather(offsets, offset, "the groups of ranks")->wait();
    const int64_t* found = offsets.const_data_ptr<int64_t>();
    at::Tensor memory;
    if (ranks.size() > 1 && found[ranks.front()] != kNowhere) {
      memory = host().blocks->open(found[ranks.front()], bytes, at::kByte, id);
    }
    for (const RankGroup& other : groups) {
      if (found[other.ranks.front()] != kNowhere) continue;
      throw Error("the memory that ranks share has no room for the " + describe(other));
    }
    if (ranks.size() == 1)
      return make_lone_communicator(
          std::move(group), timeout(),
          [all = use_->rank](const std::string& error) { all->board().announce_failure(error); });
    return std::make_shared<SharedMemoryCommunicator>(
        use_->rank, std::move(group),
        SharedTransfers::Group{.id = id,
                               .rank = static_cast<int>(place - ranks.begin()),
                               .ranks = group.ranks,
                               .memory = std::move(memory)},
        timeout(), store_->part("group" + std::to_string(id)));
  }

  std::shared_ptr<GroupUse> use_;
  StorePointer store_;
  int boards_ = 0;
  uint64_t splits_ = 0;
};

}  // namespace

std::shared_ptr<Communicator> make_shared_memory_communicator(const RanksOfHost& ranks,
                                                              const StorePointer& store, uint64_t job,
                                                              std::chrono::milliseconds timeout,
                                                              const Deadline& deadline,
                                                              std::string& obstacle) {
  std::unique_ptr<HostRanks> opened = meet_on_host(ranks, store, job, deadline, obstacle);
  if (!opened) return nullptr;
  return std::make_shared<SharedMemoryCommunicator>(ranks, timeout, std::move(opened), store);
}

}  // namespace zerorun
