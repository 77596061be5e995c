// Stands for NCCL in programs that test how it is called, without a GPU: a request takes as long as a test
// says, and what NCCL forbids is noted. Linked in place of libnccl. Any thread.
#pragma once

#include <nccl.h>

#include <mutex>
#include <string>
#include <vector>

namespace zerorun::testing {

class FakeNccl {
 public:
  /// As new: no communicator, nothing done.
  void reset();

  /// How often a request is found in progress before it is done; -1: for ever.
  void take(int polls);
  /// What a request, or asking for errors, comes to.
  void fail_requests(ncclResult_t result);
  void report(ncclResult_t result);
  /// A rank stands still that calls of this name ("deregister", or "GPU" for what waits for the GPU) wait
  /// for: they return when let_go() is called or, all but "destroy", when their communicator is told to
  /// abort.
  void hold(const std::string& what);
  void let_go();
  /// As on a machine where GPUs cannot reach each other's memory.
  void take_windows_away();

  /// What was asked for, in order: "all_gather 0" of communicator 0, "group", "abort 1", "GPU idle".
  std::vector<std::string> done() const;
  /// What NCCL forbids and was done: several calls at once, a request before the last was settled, any use of
  /// a communicator that is gone.
  std::vector<std::string> violations() const;

  // For the functions that stand for NCCL's.
  ncclResult_t request(ncclComm* comm, const std::string& what);
  void note(ncclComm* comm, const std::string& what);  // what is done at once
  ncclResult_t state(ncclComm* comm);
  ncclResult_t end(ncclComm* comm, const std::string& what);
  void await_gpu();
  ncclComm* make();
  bool has_windows() const;
  void set_grouping(bool grouping);

 private:
  class Call;

  void wait_if_held(std::unique_lock<std::mutex>& lock, ncclComm* comm, const std::string& what);

  mutable std::mutex mutex_;
  std::vector<ncclComm*> comms_;
  std::vector<std::string> done_;
  std::vector<std::string> violations_;
  int polls_ = 0;
  bool grouping_ = false;
  std::string held_;
  bool has_windows_ = true;
  ncclResult_t requests_ = ncclSuccess;
  ncclResult_t reported_ = ncclSuccess;
};

/// The one of this program.
FakeNccl& fake_nccl();

}  // namespace zerorun::testing
