// A fake NCCL for tests of how NCCL is called, without a GPU: a request takes as many polls as a test sets,
// and calls that NCCL forbids are recorded. Linked in place of libnccl. Any thread.
#pragma once

#include <nccl.h>

#include <mutex>
#include <string>
#include <vector>

namespace zerorun::testing {

class FakeNccl {
 public:
  /// Back to the initial state: no communicators, no recorded calls.
  void reset();

  /// How many polls find a request in progress before it is done; -1: never done.
  void take(int polls);
  /// The result of every request, and of every query for errors.
  void fail_requests(ncclResult_t result);
  void report(ncclResult_t result);
  /// Simulates another rank that stands still: calls of this name ("deregister", or "GPU" for waits for the
  /// GPU) return only when let_go() is called or, all but "destroy", when their communicator is told to
  /// abort.
  void hold(const std::string& what);
  void let_go();
  /// As on a machine whose GPUs cannot reach each other's memory.
  void take_windows_away();

  /// The calls, in order: "all_gather 0" of communicator 0, "group", "abort 1", "GPU idle".
  std::vector<std::string> done() const;
  /// Forbidden calls that were made: several at once, a request before the last was settled, any use of a
  /// destroyed or aborted communicator.
  std::vector<std::string> violations() const;

  // For the functions that replace NCCL's.
  ncclResult_t request(ncclComm* comm, const std::string& what);
  void note(ncclComm* comm, const std::string& what);  // calls that are done at once
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

/// The instance of this program.
FakeNccl& fake_nccl();

}  // namespace zerorun::testing
