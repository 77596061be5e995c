// NCCL's communicators of one rank. Shared by the rank's communicator and the memory that is registered with
// them; any thread.
//
// They are non-blocking, because only such can be aborted at any time: what NCCL is asked to do it does in a
// thread of its own, and settle() waits for that. Two locks: operate() is held from a request until it is
// settled, since NCCL takes one at a time; the other around each call of NCCL, since an abort should meet
// none. Calls that may block all the same, on a rank that stands still, are made in threads that are waited
// for as long as NcclPatience says: deregistering, closing, aborting.
//
// [Note: two communicators] Gathers and reductions have one each, so that neither waits for the other on its
// way. NCCL keeps them from waiting for each other across ranks if all ranks ask in one order and it is told
// so (NCCL_LAUNCH_ORDER_IMPLICIT). Where that is switched off, one serves both.
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

/// How long to wait for what may never end.
struct NcclPatience {
  std::chrono::milliseconds with_calls = std::chrono::seconds(5);    // under way when an abort comes
  std::chrono::milliseconds with_memory = std::chrono::seconds(10);  // that is deregistered
  std::chrono::milliseconds with_close = std::chrono::seconds(10);
  std::chrono::milliseconds with_abort = std::chrono::seconds(10);
};

class NcclComms : public std::enable_shared_from_this<NcclComms> {
 public:
  using Ids = std::vector<ncclUniqueId>;

  /// Of GPU `device`. Nothing is connected yet.
  explicit NcclComms(int device, const NcclPatience& patience = {}) : device_(device), patience_(patience) {}
  NcclComms(const NcclComms&) = delete;
  NcclComms& operator=(const NcclComms&) = delete;

  /// Names for `count` communicators: one rank makes them for all.
  static Ids make_ids(size_t count);

  /// Connects one communicator for each of `ids`, which all ranks do. `most_blocks` of the GPU for a
  /// collective; 0: as NCCL likes. The error, if it fails or `watchdog` breaks, is the watchdog's; `slot` is
  /// there.
  void connect(const Ids& ids, int rank, int world_size, int most_blocks, NcclWatchdog& watchdog,
               size_t slot);

  /// Held from a request until it is settled.
  [[nodiscard]] std::unique_lock<std::mutex> operate() { return std::unique_lock(operation_); }
  /// Gives `calls` to `stream` in order, several as one operation, and returns when they are there. Tensors
  /// are on the GPU and have elements. Errors likewise.
  void issue(std::span<const CollectiveCall> calls, cudaStream_t stream, NcclWatchdog& watchdog, size_t slot);
  /// Makes `bytes` at `memory`, from ncclMemAlloc(), known to NCCL, which all ranks do; with `windows`: as
  /// memory that they share. Errors likewise.
  void register_memory(void* memory, size_t bytes, bool windows, NcclWatchdog& watchdog, size_t slot);
  /// Nothing of this rank uses `memory` any more. Takes operate() itself. Aborts when NCCL, which tells other
  /// ranks' processes, does not get through.
  void forget_memory(void* memory);

  /// What NCCL reports by itself, or what has ended in an abort, in words; empty: nothing. Waits for nothing.
  std::string failure();
  /// Ends everything under way. Returns within seconds, done or not. From then on the others do nothing.
  void abort();
  /// Waits for what is under way and leaves the other ranks in peace; aborts when that takes too long.
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
  ncclResult_t settle(size_t which, ncclResult_t result, const NcclWatchdog& watchdog);
  void finish(size_t which, ncclResult_t result, NcclWatchdog& watchdog, size_t slot);
  ncclComm_t comm_for(const CollectiveCall& call) const;
  ncclResult_t enqueue(std::span<const CollectiveCall> calls, cudaStream_t stream);
  void deregister(const Registration& registration);
  bool finalize_all();
  bool leave(const std::list<Registration>& registrations);

  const int device_;
  const NcclPatience patience_;
  std::mutex operation_;
  std::timed_mutex mutex_;                              // around calls of NCCL
  size_t count_ = 0;                                    // of communicators
  std::array<std::atomic<ncclComm_t>, kMost> comms_{};  // null: aborted
  std::array<ncclComm_t, kMost> written_{};             // where NCCL's threads put them, come what may
  std::list<Registration> registrations_;               // NCCL's threads write there too
  std::mutex words_mutex_;
  std::string gave_up_for_;
};

}  // namespace zerorun
