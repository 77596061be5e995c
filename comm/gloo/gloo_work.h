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
#include "comm/gloo/order_watch.h"
#include "comm/meeting/failure_notes.h"
#include "comm/meeting/wait_board.h"

namespace zerorun {

// Receive buffers, which are kept for reuse. Their count never exceeds the largest count that was in use at
// the same time. Any thread.
class GlooScratch {
 public:
  at::Tensor take(int64_t numel, at::ScalarType dtype);
  void give_back(const at::Tensor& tensor);
  int64_t bytes() const { return bytes_; }

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> free_;  // each covers its whole storage, as bytes
  std::atomic<int64_t> bytes_ = 0;
};

/// What all collectives of one communicator use. Messages and boards have ranks as numbers in the job.
struct GlooLinks {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  std::vector<int> ranks;  // of the group, as numbers in the job
  std::chrono::milliseconds timeout;
  WaitBoard wait_board;
  std::shared_ptr<OrderWatch> order;
  std::shared_ptr<FailureNotes> failures;  // of all groups of the job
  GlooScratch scratch = {};
};

/// Starts in the constructor. One thread.
class GlooWork : public Work {
 public:
  GlooWork(std::shared_ptr<GlooLinks> links, CollectiveCall call, int tag);
  /// Waits for the messages, because an unfinished message would block later messages.
  ~GlooWork() override;

  void wait() override;

 private:
  using Message = c10::intrusive_ptr<c10d::Work>;
  struct PeerMessage {
    int rank;
    Message message;      // null if it could not be posted
    std::string failure;  // why it could not be posted
  };

  void start();
  void receive_to_sum(at::Tensor own);
  at::Tensor received_slot(int peer) const;
  template <typename Body>
  void for_each_peer(Body body);
  void send(int peer, at::Tensor tensor);
  void receive(int peer, at::Tensor tensor);
  template <typename Start>
  static PeerMessage post(int peer, Start start);
  static std::string failure_of(PeerMessage& posted, std::chrono::milliseconds timeout);
  void stop();
  void finish(std::vector<PeerMessage>& messages, const Deadline& deadline, const OrderWatch::Wait* wait);
  std::string error_of(const std::vector<int>& lost, const std::vector<int>& late, const std::string& reason,
                       const OrderWatch::Wait* wait) const;

  std::shared_ptr<GlooLinks> links_;
  CollectiveCall call_;
  int tag_;
  uint64_t number_;
  std::chrono::milliseconds timeout_;
  int rank_;
  int world_size_;
  std::vector<PeerMessage> sends_;
  std::vector<PeerMessage> receives_;
  at::Tensor own_;       // this rank's addend
  at::Tensor received_;  // the other ranks' addends, in rank order
};

}  // namespace zerorun
