// A fake NCCL, linked in place of libnccl, for tests of the calls to NCCL without a GPU. A request of a
// non-blocking communicator is done after the number of polls that the test sets; a request of a blocking one
// when it returns. Calls that NCCL forbids are recorded. Any thread.
#pragma once

#include <nccl.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace zerorun::testing {

class FakeNccl {
 public:
  /// Returns to the initial state: no communicators, no recorded calls.
  void reset();

  /// Sets the number of polls after which a request is done; -1: never done, and requests of blocking
  /// communicators do not return.
  void take(int polls);
  /// Sets the result of every request.
  void fail_requests(ncclResult_t result);
  /// Sets the result of every query for errors.
  void report(ncclResult_t result);
  /// Simulates another rank that hangs. Calls of this name ("deregister", "GPU" for waits for the GPU, or a
  /// collective of a blocking communicator) return only after let_go(), or when an abort or a revocation of
  /// the communicator begins. "destroy" returns only after let_go().
  void hold(const std::string& what);
  void let_go();
  /// Lets window registrations return no window, as if GPUs could not reach each other's memory.
  void take_windows_away();

  /// Returns the calls in order, such as "all_gather 0" (on communicator 0), "group", "abort 1", "GPU idle".
  std::vector<std::string> done() const;
  /// Whether the calling thread made the call done()[index].
  bool done_here(size_t index) const;
  /// Lets allocations fail; with `with_cache`, until LibTorch's cache is freed.
  void fill_memory(bool with_cache);

  /// Returns the forbidden calls: a call during another call, a request before the previous request was done,
  /// and any use of a destroyed or aborted communicator.
  std::vector<std::string> violations() const;

  // Called by the functions that replace NCCL's functions.
  ncclResult_t request(ncclComm* comm, const std::string& what);
  void note(ncclComm* comm, const std::string& what);  // for calls that never return ncclInProgress
  ncclResult_t state(ncclComm* comm);
  ncclResult_t end(ncclComm* comm, const std::string& what);
  void await_gpu();
  ncclResult_t revoke(ncclComm* comm);
  ncclResult_t allocate(void** memory, size_t bytes);
  void free_cache();
  ncclComm* make(bool blocking);
  bool has_windows() const;
  void start_group();
  ncclResult_t end_group();

 private:
  class Call;

  void note_done(const std::string& what);
  bool block(std::unique_lock<std::mutex>& lock, ncclComm* comm, const std::string& what);
  void wait_if_held(std::unique_lock<std::mutex>& lock, ncclComm* comm, const std::string& what);

  mutable std::mutex mutex_;
  std::vector<ncclComm*> comms_;
  std::vector<std::string> done_;
  std::vector<std::thread::id> threads_;  // of the calls in done_
  std::vector<std::string> violations_;
  int polls_ = 0;
  bool grouping_ = false;
  std::vector<ncclComm*> group_;  // communicators of the calls of the group
  std::string held_;
  bool has_windows_ = true;
  ncclResult_t requests_ = ncclSuccess;
  ncclResult_t reported_ = ncclSuccess;
  bool full_ = false;
  bool cached_ = false;
};

/// Returns the only instance in the program.
FakeNccl& fake_nccl();

}  // namespace zerorun::testing
