// One collective over Gloo, and what the collectives of one communicator share.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "comm/communicator.h"
#include "comm/deadline.h"
#include "comm/gloo/failure_watch.h"
#include "comm/gloo/order_watch.h"
#include "comm/meeting/failure_notes.h"
#include "comm/meeting/wait_board.h"
#include "comm/scratch_buffers.h"

namespace zerorun {

/// The first of several errors. Any thread.
class FirstError {
 public:
  void set(const std::string& error);
  std::string get() const;  // empty if there is none

 private:
  mutable std::mutex mutex_;
  std::string error_;
};

/// What all collectives of one communicator use. Messages and boards have ranks as numbers in the job.
struct GlooLinks {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  std::vector<int> ranks;  // of the group, as numbers in the job
  std::chrono::milliseconds timeout;
  WaitBoard wait_board;
  std::shared_ptr<OrderWatch> order;
  std::shared_ptr<FailureNotes> failures;  // of all groups of the job, like the next one
  std::shared_ptr<FailureWatch> announcements;
  ScratchBuffers scratch = {};
  FirstError disagreement = {};  // of two ranks on a message (comm/gloo/gloo_messages.h)

  /// Whether what is under way may never end.
  bool broken() const { return wait_board.broken() || !announcements->announced().empty(); }
};

/// A tensor on its way to or from a rank of the group.
struct GlooTransfer {
  int rank;
  c10::intrusive_ptr<c10d::Work> work;  // null if it could not be started
  std::string failure;                  // why it could not be started

  /// Returns why the tensor was not transferred; empty if it was.
  std::string await(std::chrono::milliseconds timeout) const;
  /// Makes await() in another thread end, or the next await().
  void stop() const;
};
// These start a transfer. They do not throw if the connection is already lost: await() reports the error.
GlooTransfer start_send(const GlooLinks& links, int peer, at::Tensor tensor, int tag);
GlooTransfer start_receive(const GlooLinks& links, int peer, at::Tensor tensor, int tag);
/// Whether a failure is a deadline that was missed; otherwise the connection is lost.
bool is_timeout(const std::string& failure);

/// Starts in the constructor. One thread.
class GlooWork : public Work {
 public:
  GlooWork(std::shared_ptr<GlooLinks> links, CollectiveCall call, int tag);
  /// Waits for the messages, because an unfinished message would block later messages.
  ~GlooWork() override;

  void wait() override;
  bool waits_patiently() const override { return true; }
  void wait_patiently() override;
  void give_up() override;

 private:
  void start();
  void receive_to_sum(at::Tensor own);
  at::Tensor received_slot(int peer) const;
  template <typename Body>
  void for_each_peer(Body body);
  void send(int peer, at::Tensor tensor);
  void receive(int peer, at::Tensor tensor);
  void stop();
  void finish(std::vector<GlooTransfer>& messages, const Deadline& deadline, const OrderWatch::Wait* wait);
  void take_result();
  std::string error_of(const std::vector<int>& lost, const std::vector<int>& late, const std::string& reason,
                       const OrderWatch::Wait* wait) const;

  std::shared_ptr<GlooLinks> links_;
  CollectiveCall call_;
  int tag_;
  uint64_t number_;
  std::chrono::milliseconds timeout_;
  int rank_;
  int world_size_;
  std::mutex give_up_;  // held by give_up(), and while the transfers' list changes meanwhile
  std::atomic<bool> is_given_up_ = false;
  std::vector<GlooTransfer> sends_;
  std::vector<GlooTransfer> receives_;
  at::Tensor own_;       // this rank's addend
  at::Tensor received_;  // the other ranks' addends, in rank order
};

}  // namespace zerorun
