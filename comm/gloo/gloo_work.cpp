// The gloo/*.h headers come from comm/gloo/gloo_declarations.
#define USE_C10D_GLOO 1
#include "comm/gloo/gloo_work.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>

#include <algorithm>
#include <utility>

#include "base/activity_board.h"
#include "base/broken_pipes.h"
#include "base/error.h"
#include "base/memory_report.h"
#include "base/timeline.h"
#include "base/wait_for_ranks.h"
#include "comm/rank_order_sum.h"

namespace zerorun {
namespace {

// The longest time that the destructor of a Work waits if wait() was not called.
constexpr std::chrono::milliseconds kPatienceWithDropped(10'000);

template <typename Start>
GlooTransfer started(int peer, Start start) {
  const NoBrokenPipes no_signal;
  try {
    return {peer, start(), ""};
  } catch (const std::exception& error) {
    return {peer, nullptr, first_line(error.what())};
  }
}

}  // namespace

void FirstError::set(const std::string& error) {
  std::lock_guard lock(mutex_);
  if (error_.empty()) error_ = error;
}

std::string FirstError::get() const {
  std::lock_guard lock(mutex_);
  return error_;
}

GlooTransfer start_send(const GlooLinks& links, int peer, at::Tensor tensor, int tag) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return started(peer, [&] { return links.group->send(tensors, peer, tag); });
}

GlooTransfer start_receive(const GlooLinks& links, int peer, at::Tensor tensor, int tag) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return started(peer, [&] { return links.group->recv(tensors, peer, tag); });
}

std::string GlooTransfer::await(std::chrono::milliseconds timeout) const {
  if (!work) return failure;
  try {
    if (work->wait(timeout)) return "";
    // stop() has ended the wait. A wait that misses its deadline makes Gloo close this rank's connections,
    // so the ranks that wait for this one fail too.
    return work->wait(std::chrono::milliseconds(1)) ? "" : "stopped";
  } catch (const std::exception& error) {
    return first_line(error.what());
  }
}

void GlooTransfer::stop() const {
  if (work) work->abort();
}

bool is_timeout(const std::string& failure) {
  return failure.find("Timed out") != std::string::npos || failure.find("timeout") != std::string::npos;
}

GlooWork::GlooWork(std::shared_ptr<GlooLinks> links, CollectiveCall call, int tag)
    : links_(std::move(links)),
      call_(std::move(call)),
      tag_(tag),
      number_(links_->order->count(call_.kind)),
      timeout_(links_->timeout),
      rank_(links_->group->getRank()),
      world_size_(links_->group->getSize()) {
  start();
}

GlooWork::~GlooWork() {
  if (links_->broken()) return;
  timeout_ = std::min(timeout_, kPatienceWithDropped);
  try {
    const Deadline deadline(timeout_);
    finish(receives_, deadline, nullptr);
    finish(sends_, deadline, nullptr);
  } catch (const std::exception&) {
    // The next wait() reports the error.
  }
}

void GlooWork::wait() {
  const ShownWait shown(name_of(call_.kind), call_.label, call_.reason);
  const Deadline deadline(timeout_);
  {
    OrderWatch::Wait wait(*links_->order, call_, number_, [this] { stop(); });
    const FailureWatch::Wait for_announcements(*links_->announcements, [this] { stop(); });
    finish(receives_, deadline, &wait);
    finish(sends_, deadline, &wait);
  }
  take_result();
}

void GlooWork::wait_patiently() {
  const Deadline never(std::chrono::hours(24 * 365));
  finish(receives_, never, nullptr);
  finish(sends_, never, nullptr);
  const std::lock_guard lock(give_up_);
  take_result();
}

void GlooWork::give_up() {
  const std::lock_guard lock(give_up_);
  is_given_up_ = true;
  stop();
}

void GlooWork::take_result() {
  receives_.clear();
  sends_.clear();
  if (!received_.defined()) return;
  std::vector<const void*> slices;
  for (int rank = 0; rank < world_size_; ++rank) {
    slices.push_back(rank == rank_ ? own_.const_data_ptr() : received_slot(rank).const_data_ptr());
  }
  sum_in_rank_order(call_.output, slices, call_.groups());
  links_->scratch.give_back(std::exchange(received_, at::Tensor()));
}

// Posts receives before sends, because Gloo sends a message only once its receiver expects it.
void GlooWork::start() {
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

void GlooWork::receive_to_sum(at::Tensor own) {
  own_ = std::move(own);
  received_ = links_->scratch.take(own_.numel() * (world_size_ - 1), own_.scalar_type());
  for_each_peer([&](int peer) { receive(peer, received_slot(peer)); });
}

at::Tensor GlooWork::received_slot(int peer) const {
  return received_.narrow(0, (peer < rank_ ? peer : peer - 1) * own_.numel(), own_.numel());
}

template <typename Body>
void GlooWork::for_each_peer(Body body) {
  for (int step = 1; step < world_size_; ++step) body((rank_ + step) % world_size_);
}

void GlooWork::send(int peer, at::Tensor tensor) {
  if (tensor.numel() > 0) sends_.push_back(start_send(*links_, peer, std::move(tensor), tag_));
}

void GlooWork::receive(int peer, at::Tensor tensor) {
  if (tensor.numel() > 0) receives_.push_back(start_receive(*links_, peer, std::move(tensor), tag_));
}

// Makes wait() end: its messages are given up.
void GlooWork::stop() {
  for (const auto* messages : {&receives_, &sends_}) {
    for (const GlooTransfer& posted : *messages) posted.stop();
  }
}

// Checks every message even after a failure, so that the error names all missing ranks. If a connection is
// lost, the error does not name ranks that are merely late (Gloo reports a timeout for these).
void GlooWork::finish(std::vector<GlooTransfer>& messages, const Deadline& deadline,
                      const OrderWatch::Wait* wait) {
  std::vector<int> lost;
  std::vector<int> late;
  std::string reason;
  for (const GlooTransfer& posted : messages) {
    const WaitForRanks wait(TimelineName::wait_for_ranks, links_->ranks[posted.rank]);
    const bool first = lost.empty() && late.empty();
    const std::string failure = posted.await(first ? deadline.remaining() : std::chrono::milliseconds(1));
    if (failure.empty()) continue;
    const bool timed_out = is_timeout(failure) || is_given_up_;
    (timed_out ? late : lost).push_back(links_->ranks[posted.rank]);
    if (!timed_out && reason.empty()) reason = failure;
  }
  if (lost.empty() && late.empty()) return;
  links_->wait_board.mark_broken();
  const std::string error = error_of(lost, late, reason, wait);
  links_->failures->post(links_->ranks[rank_], error);
  throw CommError(error);
}

// `lost`, `late`: as numbers in the job.
std::string GlooWork::error_of(const std::vector<int>& lost, const std::vector<int>& late,
                               const std::string& reason, const OrderWatch::Wait* wait) const {
  if (std::string error = wait ? wait->disagreement() : ""; !error.empty()) {
    links_->wait_board.publish_failed(call_);
    return error;
  }
  if (std::string error = links_->disagreement.get(); !error.empty()) return error;
  if (std::string error = links_->announcements->find(); !error.empty()) return error;
  std::vector<int> absent = lost;
  absent.insert(absent.end(), late.begin(), late.end());
  if (auto disagreement = links_->wait_board.disagreement(call_, absent)) return *disagreement;
  const std::string what = describe(call_);
  const std::string cause = links_->failures->first_of(lost.empty() ? late : lost);
  if (!lost.empty()) {
    return what + ": lost the connection to " + name_ranks(lost) + ", which has probably ended (" + reason +
           ")" + cause;
  }
  return missed_deadline(what, late, timeout_) + cause;
}

}  // namespace zerorun
