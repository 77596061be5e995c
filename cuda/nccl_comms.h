// The NCCL communicators of one rank. Shared by the rank's NcclCommunicator and the memory registered with
// them; any thread.
//
// They are non-blocking, because only those can be aborted at any time: NCCL performs each request in a
// thread of its own, and await_result() waits for it. There are two locks. operate() is held from a request
// until it is settled, since NCCL accepts one request at a time. mutex_ is held around each NCCL call, since
// an abort should not coincide with one. Calls that may block anyway when another rank hangs (deregistering,
// closing, aborting) run in helper threads, which the caller waits for no longer than NcclPatience.
//
// [Note: two communicators] Gathers and reductions use one communicator each, so that they overlap. NCCL
// prevents deadlocks between the two across ranks if all ranks launch in the same order and
// NCCL_LAUNCH_ORDER_IMPLICIT is set. If the user has switched that off, one communicator serves both.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "cuda/nccl_watchdog.h"

namespace zerorun {

/// How long to wait for calls that may never return.
struct NcclPatience {
  std::chrono::milliseconds with_calls = std::chrono::seconds(5);    // NCCL calls in progress before an abort
  std::chrono::milliseconds with_memory = std::chrono::seconds(10);  // deregistering
  std::chrono::milliseconds with_close = std::chrono::seconds(10);
  std::chrono::milliseconds with_abort = std::chrono::seconds(10);
};

class NcclComms : public std::enable_shared_from_this<NcclComms> {
 public:
  using Ids = std::vector<ncclUniqueId>;

  /// For GPU `device`; connects nothing yet.
  explicit NcclComms(int device, const NcclPatience& patience = {}) : device_(device), patience_(patience) {}
  NcclComms(const NcclComms&) = delete;
  NcclComms& operator=(const NcclComms&) = delete;

  /// Unique ids for `count` communicators, which one rank creates for all.
  static Ids make_ids(size_t count);

  /// Connects one communicator for each of `ids`; all ranks call it. `most_blocks` limits the GPU blocks of a
  /// collective; 0: NCCL's choice. If it fails or `watchdog` breaks, throws the watchdog's error; `slot` is
  /// the watchdog's slot of this call.
  void connect(const Ids& ids, int rank, int world_size, int most_blocks, NcclWatchdog& watchdog,
               size_t slot);

  /// The lock to hold from a request until it is settled.
  [[nodiscard]] std::unique_lock<std::mutex> operate() { return std::unique_lock(operation_); }
  /// Enqueues `calls` on `stream` in order, several as one NCCL group, and returns when they are enqueued.
  /// The caller holds operate(). Tensors are on the GPU and not empty. Errors as in connect().
  void issue(std::span<const CollectiveCall> calls, cudaStream_t stream, NcclWatchdog& watchdog, size_t slot);
  /// Registers `bytes` at `memory`, from ncclMemAlloc(), with NCCL; all ranks call it. `windows`: registers
  /// them as a symmetric window. Errors as in connect().
  void register_memory(void* memory, size_t bytes, bool windows, NcclWatchdog& watchdog, size_t slot);
  /// Deregisters `memory`, which this rank no longer uses. Takes operate() itself. Aborts if NCCL does not
  /// hear from the other ranks' processes in time.
  void forget_memory(void* memory);

  /// NCCL's asynchronous error, or the reason for an abort, as a message; empty if none. Never blocks.
  std::string failure();
  /// Aborts all operations. Returns within seconds, complete or not. The other functions then do nothing.
  void abort();
  /// Waits for running operations and disconnects from the other ranks; aborts if that takes too long.
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
  std::future<bool> start(std::function<bool()> work);
  std::string gave_up_for();
  ncclResult_t await_result(size_t which, ncclResult_t result, const NcclWatchdog& watchdog);
  void finish(size_t which, ncclResult_t result, NcclWatchdog& watchdog, size_t slot);
  ncclComm_t comm_for(const CollectiveCall& call) const;
  ncclResult_t enqueue(std::span<const CollectiveCall> calls, cudaStream_t stream);
  void deregister(const Registration& registration);
  bool finalize_all();
  bool leave(const std::list<Registration>& registrations);

  const int device_;
  const NcclPatience patience_;
  std::mutex operation_;
  std::timed_mutex mutex_;                              // held around calls to NCCL
  size_t count_ = 0;                                    // number of communicators
  std::array<std::atomic<ncclComm_t>, kMost> comms_{};  // null: aborted
  std::array<ncclComm_t, kMost> written_{};             // NCCL's threads may write here at any time
  std::list<Registration> registrations_;               // NCCL's threads write there too
  std::mutex words_mutex_;
  std::string gave_up_for_;
};

}  // namespace zerorun
