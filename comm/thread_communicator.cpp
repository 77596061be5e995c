#include "comm/thread_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/timeline.h"
#include "base/wait_for_ranks.h"
#include "comm/deadline.h"
#include "comm/notices.h"
#include "comm/rank_order_sum.h"
#include "comm/thread_messages.h"

namespace zerorun {
namespace {

// One collective. Every rank adds its call, and the last rank to arrive moves the data for all ranks.
struct Meeting {
  explicit Meeting(int world_size) : calls(world_size), arrived(world_size) {}

  std::vector<CollectiveCall> calls;
  std::vector<char> arrived;
  bool done = false;
  bool agreed = false;  // set before `done`: all calls are alike
};

std::string describe_with_size(const CollectiveCall& call) {
  return describe(call) + " (" + std::to_string(call.input.numel()) + " elements)";
}

bool agree(const CollectiveCall& a, const CollectiveCall& b) {
  return a.label == b.label && a.root == b.root && a.input.numel() == b.input.numel() &&
         a.input.scalar_type() == b.input.scalar_type();
}

std::vector<const void*> inputs_at(const std::vector<CollectiveCall>& calls, size_t offset) {
  std::vector<const void*> slices;
  for (const auto& call : calls) {
    slices.push_back(static_cast<const char*>(call.input.const_data_ptr()) + offset);
  }
  return slices;
}

void move_data(const std::vector<CollectiveCall>& calls) {
  const CollectiveCall& first = calls.front();
  switch (first.kind) {
    case Collective::reduce_scatter:
      for (size_t rank = 0; rank < calls.size(); ++rank) {
        sum_in_rank_order(calls[rank].output, inputs_at(calls, first.output.nbytes() * rank), first.groups());
      }
      break;
    case Collective::all_gather:
      for (const CollectiveCall& call : calls) {
        for (size_t rank = 0; rank < calls.size(); ++rank) {
          const at::Tensor& source = calls[rank].input;
          at::Tensor slice =
              call.output.narrow(0, static_cast<int64_t>(rank) * source.numel(), source.numel());
          if (slice.const_data_ptr() != source.const_data_ptr()) slice.copy_(source);
        }
      }
      break;
    case Collective::all_reduce: {
      at::Tensor total = at::empty_like(first.output);
      sum_in_rank_order(total, inputs_at(calls, 0), first.groups());
      for (const CollectiveCall& call : calls) call.output.copy_(total);
      break;
    }
    case Collective::broadcast:
      for (size_t rank = 0; rank < calls.size(); ++rank) {
        const at::Tensor& source = calls[first.root].input;
        at::Tensor output = calls[rank].output;
        if (output.const_data_ptr() != source.const_data_ptr()) output.copy_(source);
      }
      break;
    case Collective::barrier:
      break;
  }
}

// What a rank of the job has announced, for all groups of ranks.
class Announcement {
 public:
  void make(int rank, const std::string& error) {
    std::lock_guard lock(mutex_);
    if (text_.empty()) text_ = "rank " + std::to_string(rank) + " cannot go on: " + error;
  }
  std::string text() const {
    std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

class ThreadGroup {
 public:
  ThreadGroup(std::vector<int> ranks, std::shared_ptr<Announcement> announcement)
      : announcement_(std::move(announcement)),
        ranks_(std::move(ranks)),
        world_size_(static_cast<int>(ranks_.size())),
        waiting_(ranks_.size()),
        messages_(ranks_) {}

  /// Adds the rank's call to its meeting, which the call's kind and `number` identify.
  std::shared_ptr<Meeting> arrive(int64_t number, int rank, const CollectiveCall& call) {
    const std::pair key(call.kind, number);
    std::unique_lock lock(mutex_);
    auto& entry = meetings_[key];
    if (!entry) entry = std::make_shared<Meeting>(world_size_);
    auto meeting = entry;
    meeting->calls[rank] = call;
    meeting->arrived[rank] = 1;
    if (!absent(*meeting).empty()) return meeting;
    meetings_.erase(key);
    lock.unlock();
    const auto& calls = meeting->calls;
    meeting->agreed = std::ranges::all_of(calls, [&](const auto& other) { return agree(other, calls[0]); });
    if (meeting->agreed) move_data(calls);  // otherwise each rank's wait() throws
    lock.lock();
    meeting->done = true;
    changed_.notify_all();
    return meeting;
  }

  const std::shared_ptr<NoticesInMemory>& notices() const { return notices_; }
  const std::shared_ptr<Announcement>& announcement() const { return announcement_; }
  int rank_in_job(int rank) const { return ranks_[static_cast<size_t>(rank)]; }

  bool is_over(const Meeting& meeting) {
    std::lock_guard lock(mutex_);
    return meeting.done;
  }

  void await(const Meeting& meeting, int rank, const Deadline& deadline) {
    const std::string what = describe(meeting.calls[rank]);
    std::unique_lock lock(mutex_);
    const bool waits = timeline::is_on() && !meeting.done;
    const std::vector<int> others = waits ? absent(meeting) : std::vector<int>();
    const WaitForRanks wait(TimelineName::wait_for_ranks, others.empty() ? -1 : ranks_[others.front()]);
    if (await(lock, rank, what, deadline, [&] { return meeting.done; })) return;
    for (int other : absent(meeting)) {
      if (waiting_[other].empty() || waiting_[other] == what) continue;
      throw CommError(describe_disagreement(ranks_[rank], what, ranks_[other], waiting_[other]));
    }
    std::vector<int> missing = absent(meeting);
    for (int& other : missing) other = ranks_[other];
    throw CommError(missed_deadline(what, missing, deadline.timeout()));
  }

  /// Delivers the message, of which it makes a copy. If there is no room, waits for it.
  void send(MessageCall call, const Deadline& deadline) {
    call.tensor = call.tensor.clone();
    std::unique_lock lock(mutex_);
    if (!messages_.has_room_for(call))
      await_message(lock, call, deadline, [&] { return messages_.has_room_for(call); });
    messages_.post(std::move(call));
    changed_.notify_all();
  }

  std::shared_ptr<ThreadMessages::Receipt> receive(MessageCall call) {
    std::lock_guard lock(mutex_);
    auto receipt = messages_.expect(std::move(call));
    changed_.notify_all();  // there may be room for another message now
    return receipt;
  }

  void await(const ThreadMessages::Receipt& receipt, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    await_message(lock, receipt.call, deadline, [&] { return receipt.done; });
  }

  /// Throws if a message between the two ranks has a disagreement.
  void check_messages(int rank, int other) {
    std::lock_guard lock(mutex_);
    if (std::string error = messages_.disagreement(rank, other); !error.empty()) throw CommError(error);
  }

 private:
  static std::vector<int> absent(const Meeting& meeting) {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < meeting.arrived.size(); ++rank) {
      if (!meeting.arrived[rank]) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  // Returns false if the deadline has passed. The words of a failed wait stay in waiting_.
  template <typename Condition>
  bool await(std::unique_lock<std::mutex>& lock, int rank, const std::string& what, const Deadline& deadline,
             Condition done) {
    constexpr std::chrono::milliseconds kLook(100);  // how often a waiting rank looks for an announcement
    waiting_[rank] = what;
    std::string error;
    for (;;) {
      const bool ended =
          changed_.wait_until(lock, std::min(deadline.end(), Deadline::Clock::now() + kLook),
                              [&] { return done() || !(error = messages_.disagreement(rank)).empty(); });
      if (error.empty() && !ended) error = announcement_->text();
      if (!error.empty()) throw CommError(error);
      if (ended) waiting_[rank].clear();
      if (ended || Deadline::Clock::now() >= deadline.end()) return ended;
    }
  }

  template <typename Condition>
  void await_message(std::unique_lock<std::mutex>& lock, const MessageCall& call, const Deadline& deadline,
                     Condition done) {
    const int rank = call.is_send ? call.sender : call.receiver;
    const WaitForRanks wait(TimelineName::wait_for_message, ranks_[call.other()]);
    if (await(lock, rank, describe(call, ranks_), deadline, done)) return;
    const std::string& theirs = waiting_[call.other()];
    throw CommError(
        missed_deadline(call, ranks_, deadline.timeout()) +
        (theirs.empty() ? "" : "; rank " + std::to_string(ranks_[call.other()]) + " waits for " + theirs));
  }

  const std::shared_ptr<Announcement> announcement_;
  const std::vector<int> ranks_;  // their numbers in the whole job
  const int world_size_;
  const std::shared_ptr<NoticesInMemory> notices_ = std::make_shared<NoticesInMemory>();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> waiting_;  // by rank: what the rank waits for, or the wait that failed
  std::map<std::pair<Collective, int64_t>, std::shared_ptr<Meeting>> meetings_;
  ThreadMessages messages_;
};

class ThreadWork : public Work {
 public:
  ThreadWork(std::shared_ptr<ThreadGroup> group, std::shared_ptr<Meeting> meeting, int rank,
             std::chrono::milliseconds timeout)
      : group_(std::move(group)), meeting_(std::move(meeting)), rank_(rank), timeout_(timeout) {}

  void wait() override {
    group_->await(*meeting_, rank_, Deadline(timeout_));
    CollectiveCall& mine = meeting_->calls[rank_];
    if (meeting_->agreed) {
      // This rank's thread lets go of its tensors, not the last rank's.
      mine.input.reset();
      mine.output.reset();
      return;
    }
    for (size_t rank = 0; rank < meeting_->calls.size(); ++rank) {
      const CollectiveCall& other = meeting_->calls[rank];
      if (agree(mine, other)) continue;
      throw CommError(describe_disagreement(group_->rank_in_job(rank_), describe_with_size(mine),
                                            group_->rank_in_job(static_cast<int>(rank)),
                                            describe_with_size(other)));
    }
  }
  bool is_over() override { return group_->is_over(*meeting_); }

 private:
  std::shared_ptr<ThreadGroup> group_;
  std::shared_ptr<Meeting> meeting_;
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
    return shared;
  }
  bool shares_memory() const override { return shares_memory_; }

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
