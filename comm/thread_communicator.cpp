#include "comm/thread_communicator.h"

#include <ATen/ops/empty_like.h>

#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "comm/deadline.h"
#include "comm/rank_order_sum.h"

namespace zerorun {
namespace {

// One collective: every rank brings its call, does its own part when all have arrived, and leaves when all
// are done.
struct Meeting {
  explicit Meeting(int world_size) : calls(world_size), arrived(world_size), done(world_size) {}

  std::vector<CollectiveCall> calls;
  std::vector<char> arrived;
  std::vector<char> done;
};

class ThreadGroup {
 public:
  explicit ThreadGroup(int world_size) : world_size_(world_size), waiting_(world_size) {}

  /// The meeting of the collective with this number among those of its kind; the rank's call is laid down in
  /// it.
  std::shared_ptr<Meeting> arrive(int64_t number, int rank, const CollectiveCall& call) {
    std::lock_guard lock(mutex_);
    const std::pair key(call.kind, number);
    auto& meeting = meetings_[key];
    if (!meeting) meeting = std::make_shared<Meeting>(world_size_);
    meeting->calls[rank] = call;
    meeting->arrived[rank] = 1;
    changed_.notify_all();
    auto held = meeting;
    if (absent(held->arrived).empty()) meetings_.erase(key);
    return held;
  }

  void mark_done(Meeting& meeting, int rank) {
    std::lock_guard lock(mutex_);
    meeting.done[rank] = 1;
    changed_.notify_all();
  }

  /// Waits until every entry of `present` (arrived or done) is set.
  void await(const std::vector<char>& present, int rank, const std::string& what, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    waiting_[rank] = what;
    if (!changed_.wait_until(lock, deadline.end(), [&] { return absent(present).empty(); })) {
      for (int other : absent(present)) {
        if (waiting_[other].empty() || waiting_[other] == what) continue;
        throw CommError(describe_disagreement(rank, what, other, waiting_[other]));
      }
      throw CommError(missed_deadline(what, absent(present), deadline.timeout()));
    }
    waiting_[rank].clear();
  }

 private:
  static std::vector<int> absent(const std::vector<char>& present) {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < present.size(); ++rank) {
      if (!present[rank]) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  const int world_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> waiting_;  // what each rank waits for, or waited for in vain
  std::map<std::pair<Collective, int64_t>, std::shared_ptr<Meeting>> meetings_;
};

class ThreadWork : public Work {
 public:
  ThreadWork(std::shared_ptr<ThreadGroup> group, std::shared_ptr<Meeting> meeting, int rank,
             std::chrono::milliseconds timeout)
      : group_(std::move(group)), meeting_(std::move(meeting)), rank_(rank), timeout_(timeout) {}

  void wait() override {
    const CollectiveCall& mine = meeting_->calls[rank_];
    const std::string what = describe(mine);
    const Deadline deadline(timeout_);
    group_->await(meeting_->arrived, rank_, what, deadline);
    check_agreement(mine);
    at::Tensor result = do_part(mine);
    group_->mark_done(*meeting_, rank_);
    group_->await(meeting_->done, rank_, what, deadline);
    // Others were reading this rank's tensor until now.
    if (result.defined()) mine.output.copy_(result);
  }

 private:
  void check_agreement(const CollectiveCall& mine) const {
    for (size_t rank = 0; rank < meeting_->calls.size(); ++rank) {
      const CollectiveCall& other = meeting_->calls[rank];
      const bool same_tensors =
          other.input.numel() == mine.input.numel() && other.input.scalar_type() == mine.input.scalar_type();
      if (other.label == mine.label && other.root == mine.root && same_tensors) continue;
      auto text = [](const CollectiveCall& call) {
        return describe(call) + " (" + std::to_string(call.input.numel()) + " elements)";
      };
      throw CommError(describe_disagreement(rank_, text(mine), static_cast<int>(rank), text(other)));
    }
  }

  // Reads other ranks' inputs and writes only what no other rank reads; a result that must wait is returned.
  at::Tensor do_part(const CollectiveCall& mine) const {
    const auto& calls = meeting_->calls;
    switch (mine.kind) {
      case Collective::reduce_scatter: {
        const size_t offset = mine.output.nbytes() * rank_;
        sum_in_rank_order(mine.output, inputs_at(offset));
        return {};
      }
      case Collective::all_gather:
        for (size_t rank = 0; rank < calls.size(); ++rank) {
          at::Tensor slice =
              mine.output.narrow(0, static_cast<int64_t>(rank) * mine.input.numel(), mine.input.numel());
          const at::Tensor& source = calls[rank].input;
          if (slice.const_data_ptr() != source.const_data_ptr()) slice.copy_(source);
        }
        return {};
      case Collective::all_reduce: {
        at::Tensor total = at::empty_like(mine.output);
        sum_in_rank_order(total, inputs_at(0));
        return total;
      }
      case Collective::broadcast:
        if (rank_ != mine.root) mine.output.copy_(calls[mine.root].input);
        return {};
      case Collective::barrier:
        return {};
    }
    return {};
  }

  std::vector<const void*> inputs_at(size_t offset) const {
    std::vector<const void*> slices;
    for (const auto& call : meeting_->calls) {
      slices.push_back(static_cast<const char*>(call.input.const_data_ptr()) + offset);
    }
    return slices;
  }

  std::shared_ptr<ThreadGroup> group_;
  std::shared_ptr<Meeting> meeting_;
  int rank_;
  std::chrono::milliseconds timeout_;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank, int world_size,
                     std::chrono::milliseconds timeout)
      : Communicator(rank, world_size, timeout), group_(std::move(group)) {}

 private:
  std::unique_ptr<Work> start(CollectiveCall call) override {
    auto meeting = group_->arrive(next_[static_cast<size_t>(call.kind)]++, rank(), call);
    return std::make_unique<ThreadWork>(group_, std::move(meeting), rank(), timeout());
  }

  std::shared_ptr<ThreadGroup> group_;
  std::array<int64_t, kCollectiveKinds> next_{};
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> make_thread_communicators(int world_size,
                                                                     std::chrono::milliseconds timeout) {
  auto group = std::make_shared<ThreadGroup>(world_size);
  std::vector<std::shared_ptr<Communicator>> communicators;
  for (int rank = 0; rank < world_size; ++rank) {
    communicators.push_back(std::make_shared<ThreadCommunicator>(group, rank, world_size, timeout));
  }
  return communicators;
}

}  // namespace zerorun
