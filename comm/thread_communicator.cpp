#include "comm/thread_communicator.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "comm/deadline.h"
#include "comm/thread_group.h"

namespace zerorun {
namespace {

class ThreadWork : public Work {
 public:
  ThreadWork(std::shared_ptr<ThreadGroup> group, std::shared_ptr<ThreadGroup::Meeting> meeting, int rank,
             std::chrono::milliseconds timeout)
      : group_(std::move(group)), meeting_(std::move(meeting)), rank_(rank), timeout_(timeout) {}

  void wait() override { group_->complete(*meeting_, rank_, Deadline(timeout_)); }
  bool is_over() override { return group_->is_over(*meeting_); }

 private:
  std::shared_ptr<ThreadGroup> group_;
  std::shared_ptr<ThreadGroup::Meeting> meeting_;
  int rank_;
  std::chrono::milliseconds timeout_;
};

/// A send, which is over when it has started, or a receive.
class ThreadMessageWork : public Work {
 public:
  ThreadMessageWork(std::shared_ptr<ThreadGroup> group, std::shared_ptr<ThreadMessages::Receipt> receipt,
                    int rank, int other, std::chrono::milliseconds timeout)
      : group_(std::move(group)),
        receipt_(std::move(receipt)),
        rank_(rank),
        other_(other),
        timeout_(timeout) {}

  void wait() override {
    if (receipt_) return group_->await(*receipt_, Deadline(timeout_));
    group_->check_messages(rank_, other_);
  }

 private:
  std::shared_ptr<ThreadGroup> group_;
  std::shared_ptr<ThreadMessages::Receipt> receipt_;  // null: a send
  int rank_;
  int other_;
  std::chrono::milliseconds timeout_;
};

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank, int world_size,
                     std::chrono::milliseconds timeout, bool shares_memory)
      : Communicator(rank, world_size, timeout), group_(std::move(group)), shares_memory_(shares_memory) {}
  /// One of a part of the job.
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank, RankGroup ranks,
                     std::chrono::milliseconds timeout, bool shares_memory)
      : ThreadCommunicator(std::move(group), rank, static_cast<int>(ranks.ranks.size()), timeout,
                           shares_memory) {
    set_group(std::move(ranks));
  }

  void announce_failure(const std::string& error) noexcept override {
    group_->announcement()->make(rank_in_job(rank()), error);
  }

  std::string announced_failure() noexcept override { return group_->announcement()->text(); }

  std::unique_ptr<Notices> open_notices() override { return make_notices(group_->notices(), boards_++); }

  at::Tensor allocate_shared(int64_t numel, at::ScalarType dtype) override {
    if (!shares_memory_) return {};
    at::Tensor shared = rank() == 0 ? allocate(numel, dtype) : at::Tensor();
    at::Tensor address = at::empty({1}, at::kLong);
    address.mutable_data_ptr<int64_t>()[0] = reinterpret_cast<int64_t>(&shared);
    broadcast(address, 0, "the place of shared memory")->wait();
    if (rank() != 0)
      shared = reinterpret_cast<const at::Tensor*>(address.const_data_ptr<int64_t>()[0])->detach();
    barrier("shared memory")->wait();
    std::erase_if(shared_, [](const WeakStorage& storage) { return storage.expired(); });
    shared_.emplace_back(shared.storage().getWeakStorageImpl());
    return shared;
  }
  bool shares_memory() const override { return shares_memory_; }
  bool is_shared(const at::Tensor& tensor) const override {
    return std::ranges::any_of(shared_, [&](const WeakStorage& storage) {
      return !storage.expired() && storage._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl();
    });
  }

 private:
  std::unique_ptr<Work> start(CollectiveCall call) override {
    auto meeting = group_->arrive(next_[static_cast<size_t>(call.kind)]++, rank(), call);
    return std::make_unique<ThreadWork>(group_, std::move(meeting), rank(), timeout());
  }

  std::unique_ptr<Work> start_message(MessageCall call) override {
    const int other = call.other();
    std::shared_ptr<ThreadMessages::Receipt> receipt;
    if (call.is_send) {
      group_->send(std::move(call), Deadline(timeout()));
    } else {
      receipt = group_->receive(std::move(call));
    }
    return std::make_unique<ThreadMessageWork>(group_, std::move(receipt), rank(), other, timeout());
  }

  // The first rank of each group makes what the group's ranks share.
  std::shared_ptr<Communicator> make_part(const std::vector<RankGroup>& groups, size_t own,
                                          RankGroup group) override {
    const std::vector<int>& ranks = groups[own].ranks;
    const auto place = std::ranges::find(ranks, rank());
    std::shared_ptr<ThreadGroup> shared;
    if (place == ranks.begin()) shared = std::make_shared<ThreadGroup>(group.ranks, group_->announcement());
    at::Tensor address = at::empty({1}, at::kLong);
    address.mutable_data_ptr<int64_t>()[0] = reinterpret_cast<int64_t>(&shared);
    at::Tensor addresses = at::empty({world_size()}, at::kLong);
    all_gather(addresses, address, "the groups of ranks")->wait();
    if (place != ranks.begin())
      shared = *reinterpret_cast<const std::shared_ptr<ThreadGroup>*>(
          addresses.const_data_ptr<int64_t>()[ranks.front()]);
    barrier("the groups of ranks")->wait();
    return std::make_shared<ThreadCommunicator>(std::move(shared), static_cast<int>(place - ranks.begin()),
                                                std::move(group), timeout(), shares_memory_);
  }

  std::shared_ptr<ThreadGroup> group_;
  int boards_ = 0;
  const bool shares_memory_;
  std::vector<WeakStorage> shared_;  // of each tensor from allocate_shared()
  std::array<int64_t, kCollectiveKinds> next_{};
};

// One rank of a job whose other ranks may be processes.
class LoneCommunicator : public ThreadCommunicator {
 public:
  LoneCommunicator(RankGroup group, std::chrono::milliseconds timeout,
                   std::function<void(const std::string& error)> announce_failure)
      : ThreadCommunicator(std::make_shared<ThreadGroup>(group.ranks, std::make_shared<Announcement>()), 0,
                           group, timeout, false),
        announce_failure_(std::move(announce_failure)) {}

  void announce_failure(const std::string& error) noexcept override { announce_failure_(error); }

 private:
  std::function<void(const std::string& error)> announce_failure_;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> make_thread_communicators(int world_size,
                                                                     std::chrono::milliseconds timeout,
                                                                     bool shares_memory) {
  std::vector<int> ranks(static_cast<size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto group = std::make_shared<ThreadGroup>(std::move(ranks), std::make_shared<Announcement>());
  std::vector<std::shared_ptr<Communicator>> communicators;
  for (int rank = 0; rank < world_size; ++rank) {
    communicators.push_back(
        std::make_shared<ThreadCommunicator>(group, rank, world_size, timeout, shares_memory));
  }
  return communicators;
}

std::shared_ptr<Communicator> make_lone_communicator(
    RankGroup group, std::chrono::milliseconds timeout,
    std::function<void(const std::string& error)> announce_failure) {
  return std::make_shared<LoneCommunicator>(std::move(group), timeout, std::move(announce_failure));
}

}  // namespace zerorun
