// The NCCL communicators of one rank. Shared by the rank's NcclCommunicator and the memory that is registered
// with them. Any thread.
//
// operation_ is held from a request until it has completed, since NCCL accepts one request at a time. mutex_
// is held during each NCCL call, since an abort should not overlap with a call. Calls that may wait for other
// ranks run in helper threads, for which the caller waits only until the watchdog breaks the communicator, or
// no longer than NcclPatience.
//
// [Note: blocking communicators] A blocking communicator enqueues a collective in the caller's thread. A
// non-blocking one starts a thread for each, which NCCL can stop at any time. The communicators are blocking,
// with helper threads for the calls that connect ranks: those that create a communicator, and the first
// collective of each shape (shape_of() in cuda/nccl_calls.h). All other collectives wait at most for the GPU.
// If memory is registered with NCCL, any collective may wait for other ranks, so the communicators are
// non-blocking then, and await_result() polls for the end of each request.
//
// [Note: two communicators] Gathers and reductions use separate communicators, so that they overlap. NCCL
// prevents deadlocks between the two if all ranks launch in the same order and NCCL_LAUNCH_ORDER_IMPLICIT is
// set. If the user has disabled that setting, one communicator serves both.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "comm/communicator.h"
#include "cuda/nccl_calls.h"
#include "cuda/nccl_watchdog.h"

namespace zerorun {

/// The longest times to wait for NCCL calls that may never return.
struct NcclPatience {
  std::chrono::milliseconds with_calls = std::chrono::seconds(5);    // abort() waits for a call in progress
  std::chrono::milliseconds with_memory = std::chrono::seconds(10);  // for deregistering memory
  std::chrono::milliseconds with_close = std::chrono::seconds(10);
  std::chrono::milliseconds with_abort = std::chrono::seconds(10);
};

struct NcclSetup {
  int rank = 0;
  int world_size = 1;
  int most_blocks = 0;   // the most GPU blocks of a collective; 0 leaves the choice to NCCL
  bool blocking = true;  // must be false if memory will be registered ([Note: blocking communicators])
};

class NcclComms : public std::enable_shared_from_this<NcclComms> {
 public:
  using Ids = std::vector<ncclUniqueId>;

  /// For GPU `device`. Does not connect yet.
  explicit NcclComms(int device, const NcclPatience& patience = {}) : device_(device), patience_(patience) {}
  NcclComms(const NcclComms&) = delete;
  NcclComms& operator=(const NcclComms&) = delete;

  /// Creates unique ids for `count` communicators. One rank creates them for all ranks.
  static Ids make_ids(size_t count);

  /// Connects one communicator per id. All ranks call it. `slot` is the watchdog's slot for this call. If the
  /// call fails, or if the watchdog breaks the communicator, throws the watchdog's error.
  void connect(const Ids& ids, const NcclSetup& setup, NcclWatchdog& watchdog, size_t slot);

  /// Returns the lock to hold from an NCCL request until the request has completed.
  [[nodiscard]] std::unique_lock<std::mutex> operate() { return std::unique_lock(operation_); }
  /// Enqueues `calls` on `stream` in order, as one NCCL group if there are several, and returns when they are
  /// enqueued. The caller must hold operate(). The tensors must be on the GPU and not empty. Throws as
  /// connect() does.
  void issue(std::span<const CollectiveCall> calls, cudaStream_t stream, NcclWatchdog& watchdog, size_t slot);
  /// Enqueues `message` on communicator `which` of two ranks, under the conditions of issue().
  void issue_message(const NcclMessage& message, size_t which, cudaStream_t stream, NcclWatchdog& watchdog,
                     size_t slot);
  /// Registers `bytes` bytes at `memory`, which is from ncclMemAlloc(), with NCCL. All ranks call it. With
  /// `windows`, registers the memory as a symmetric window. Throws as connect() does.
  void register_memory(void* memory, size_t bytes, bool windows, NcclWatchdog& watchdog, size_t slot);
  /// Deregisters `memory`, which this rank no longer uses. Takes operate() itself. Aborts the communicators
  /// if the other ranks' processes do not answer in time.
  void forget_memory(void* memory);

  /// Returns NCCL's asynchronous error, or the reason for an abort, as a message; empty if there is none.
  /// Never blocks.
  std::string failure();
  /// Aborts all operations. Returns within seconds, even if the abort is not complete. The other functions do
  /// nothing afterwards.
  void abort();
  /// Waits for running operations and disconnects from the other ranks. Aborts if that takes too long.
  void close();

 private:
  static constexpr size_t kMost = 2;
  struct Registration {
    void* memory;
    std::array<ncclWindow_t, kMost> windows{};
    std::array<void*, kMost> handles{};
  };

  template <typename Body>
  ncclResult_t call(size_t which, const Body& body);
  std::future<ncclResult_t> start(std::function<ncclResult_t()> work);
  ncclResult_t await_helper(std::future<ncclResult_t> result, const NcclWatchdog& watchdog);
  ncclResult_t create(size_t which, const ncclUniqueId& id, const NcclSetup& setup);
  std::string gave_up_for();
  ncclResult_t await_result(size_t which, ncclResult_t result, const NcclWatchdog& watchdog);
  void finish(size_t which, ncclResult_t result, NcclWatchdog& watchdog, size_t slot);
  ncclComm_t comm_for(const CollectiveCall& call) const;
  ncclResult_t enqueue_all(std::span<const CollectiveCall> calls, cudaStream_t stream);
  ncclResult_t enqueue_first(std::span<const CollectiveCall> calls, cudaStream_t stream,
                             const NcclWatchdog& watchdog);
  void deregister(const Registration& registration);
  ncclResult_t abort_beside_call(ncclComm_t comm);
  ncclResult_t finalize_all();
  ncclResult_t leave(const std::list<Registration>& registrations);

  const int device_;
  const NcclPatience patience_;
  std::mutex operation_;
  std::timed_mutex mutex_;  // held during each call to NCCL
  size_t count_ = 0;        // number of communicators
  bool blocking_ = true;
  int rank_ = 0;
  std::atomic<bool> aborted_ = false;
  std::unordered_set<uint64_t> connected_;              // shapes of the collectives so far, under operation_
  std::array<std::atomic<ncclComm_t>, kMost> comms_{};  // null: not connected, or aborted
  std::array<ncclComm_t, kMost> written_{};             // the threads of NCCL may write here at any time
  std::list<Registration> registrations_;               // the threads of NCCL write to its elements
  std::mutex words_mutex_;
  std::string gave_up_for_;
};

}  // namespace zerorun
