// A fake NCCL, linked in place of libnccl, for tests of the calls to NCCL without a GPU. A request is done
// after the number of polls that the test sets. Calls that NCCL forbids are recorded. Any thread.
#pragma once

#include <nccl.h>

#include <mutex>
#include <string>
#include <vector>

namespace zerorun::testing {

class FakeNccl {
 public:
  /// Returns to the initial state: no communicators, no recorded calls.
  void reset();

  /// Sets the number of polls after which a request is done; -1: never done.
  void take(int polls);
  /// Sets the result of every request.
  void fail_requests(ncclResult_t result);
  /// Sets the result of every query for errors.
  void report(ncclResult_t result);
  /// Simulates another rank that hangs. Calls of this name ("deregister", or "GPU" for waits for the GPU)
  /// return only after let_go(), or when an abort of the communicator begins. "destroy" returns only after
  /// let_go().
  void hold(const std::string& what);
  void let_go();
  /// Lets window registrations return no window, as if GPUs could not reach each other's memory.
  void take_windows_away();

  /// Returns the calls in order, such as "all_gather 0" (on communicator 0), "group", "abort 1", "GPU idle".
  std::vector<std::string> done() const;
  /// Returns the forbidden calls: a call during another call, a request before the previous request was done,
  /// and any use of a destroyed or aborted communicator.
  std::vector<std::string> violations() const;

  // Called by the functions that replace NCCL's functions.
  ncclResult_t request(ncclComm* comm, const std::string& what);
  void note(ncclComm* comm, const std::string& what);  // for calls that never return ncclInProgress
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

/// Returns the only instance in the program.
FakeNccl& fake_nccl();

}  // namespace zerorun::testing
