#include "comm/thread_group.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/timeline.h"
#include "base/wait_for_ranks.h"
#include "comm/rank_order_sum.h"

namespace zerorun {
namespace {

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

}  // namespace

void Announcement::make(int rank, const std::string& error) {
  std::lock_guard lock(mutex_);
  if (text_.empty()) text_ = "rank " + std::to_string(rank) + " cannot go on: " + error;
}

std::string Announcement::text() const {
  std::lock_guard lock(mutex_);
  return text_;
}

ThreadGroup::ThreadGroup(std::vector<int> ranks, std::shared_ptr<Announcement> announcement)
    : announcement_(std::move(announcement)),
      ranks_(std::move(ranks)),
      world_size_(static_cast<int>(ranks_.size())),
      waiting_(ranks_.size()),
      messages_(ranks_) {}

std::shared_ptr<ThreadGroup::Meeting> ThreadGroup::arrive(int64_t number, int rank,
                                                          const CollectiveCall& call) {
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
  if (meeting->agreed) move_data(calls);  // otherwise each rank's complete() throws
  lock.lock();
  meeting->done = true;
  changed_.notify_all();
  return meeting;
}

bool ThreadGroup::is_over(const Meeting& meeting) {
  std::lock_guard lock(mutex_);
  return meeting.done;
}

void ThreadGroup::complete(Meeting& meeting, int rank, const Deadline& deadline) {
  await(meeting, rank, deadline);
  CollectiveCall& mine = meeting.calls[rank];
  if (meeting.agreed) {
    // This rank's thread lets go of its tensors, not the last rank's.
    mine.input.reset();
    mine.output.reset();
    return;
  }
  for (int other = 0; other < world_size_; ++other) {
    const CollectiveCall& theirs = meeting.calls[other];
    if (agree(mine, theirs)) continue;
    throw CommError(describe_disagreement(ranks_[rank], describe_with_size(mine), ranks_[other],
                                          describe_with_size(theirs)));
  }
}

void ThreadGroup::await(const Meeting& meeting, int rank, const Deadline& deadline) {
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

void ThreadGroup::send(MessageCall call, const Deadline& deadline) {
  call.tensor = call.tensor.clone();
  std::unique_lock lock(mutex_);
  if (!messages_.has_room_for(call))
    await_message(lock, call, deadline, [&] { return messages_.has_room_for(call); });
  messages_.post(std::move(call));
  changed_.notify_all();
}

std::shared_ptr<ThreadMessages::Receipt> ThreadGroup::receive(MessageCall call) {
  std::lock_guard lock(mutex_);
  auto receipt = messages_.expect(std::move(call));
  changed_.notify_all();  // there may be room for another message now
  return receipt;
}

void ThreadGroup::await(const ThreadMessages::Receipt& receipt, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  await_message(lock, receipt.call, deadline, [&] { return receipt.done; });
}

void ThreadGroup::check_messages(int rank, int other) {
  std::lock_guard lock(mutex_);
  if (std::string error = messages_.disagreement(rank, other); !error.empty()) throw CommError(error);
}

std::vector<int> ThreadGroup::absent(const Meeting& meeting) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < meeting.arrived.size(); ++rank) {
    if (!meeting.arrived[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

template <typename Condition>
bool ThreadGroup::await(std::unique_lock<std::mutex>& lock, int rank, const std::string& what,
                        const Deadline& deadline, Condition done) {
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
void ThreadGroup::await_message(std::unique_lock<std::mutex>& lock, const MessageCall& call,
                                const Deadline& deadline, Condition done) {
  const int rank = call.is_send ? call.sender : call.receiver;
  const WaitForRanks wait(TimelineName::wait_for_message, ranks_[call.other()]);
  if (await(lock, rank, describe(call, ranks_), deadline, done)) return;
  const std::string& theirs = waiting_[call.other()];
  throw CommError(
      missed_deadline(call, ranks_, deadline.timeout()) +
      (theirs.empty() ? "" : "; rank " + std::to_string(ranks_[call.other()]) + " waits for " + theirs));
}

}  // namespace zerorun
