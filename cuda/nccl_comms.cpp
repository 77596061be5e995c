#include "cuda/nccl_comms.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/deadline.h"
#include "cuda/cached_memory.h"
#include "cuda/nccl_calls.h"

namespace zerorun {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// In bytes: more than NCCL needs to connect the ranks of a communicator for one algorithm.
constexpr size_t kRoomToConnect = size_t{1} << 30;

// Waits between two polls of NCCL's state. Most requests complete within microseconds, but the first requests
// on a connection take far longer.
void pause(int turn) {
  constexpr int kSpins = 500;
  if (turn < kSpins) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(microseconds(50));
  }
}

bool failed(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
  return asked == ncclSuccess ? state : asked;
}

}  // namespace

NcclComms::Ids NcclComms::make_ids(size_t count) {
  Ids ids(count);
  for (ncclUniqueId& id : ids) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) {
      throw CommError(nccl_failure(result) + " (NCCL_SOCKET_IFNAME names the network interface to use)");
    }
  }
  return ids;
}

template <typename Body>
ncclResult_t NcclComms::call(size_t which, const Body& body) {
  if (!comms_[which]) return ncclInvalidUsage;  // before locking: a hanging call may hold the lock
  const std::lock_guard lock(mutex_);
  const ncclComm_t comm = comms_[which];
  return comm ? body(comm) : ncclInvalidUsage;
}

// Runs `work` in a detached thread. The thread shares ownership of this object, so it may run for as long as
// NCCL takes. In relaxed mode it may allocate memory while the program captures a CUDA graph.
std::future<ncclResult_t> NcclComms::start(std::function<ncclResult_t()> work) {
  std::packaged_task<ncclResult_t()> task([self = shared_from_this(), work = std::move(work)] {
    cudaSetDevice(self->device_);
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    return work();
  });
  std::future<ncclResult_t> result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

std::string NcclComms::gave_up_for() {
  const std::lock_guard lock(words_mutex_);
  return gave_up_for_;
}

// Waits for a call in a helper thread. Throws if the watchdog has broken the communicator: then nobody waits
// for the thread.
ncclResult_t NcclComms::await_helper(std::future<ncclResult_t> result, const NcclWatchdog& watchdog) {
  while (result.wait_for(milliseconds(1)) != std::future_status::ready) watchdog.check();
  return result.get();
}

// Waits until NCCL has completed a request. Even after ncclSuccess a request may still be in progress, such
// as the registration of a window. Throws if the watchdog has broken the communicator.
ncclResult_t NcclComms::await_result(size_t which, ncclResult_t result, const NcclWatchdog& watchdog) {
  if (failed(result)) return result;
  for (int turn = 0; (result = call(which, state_of)) == ncclInProgress; ++turn) {
    watchdog.check();
    pause(turn);
  }
  return result;
}

void NcclComms::finish(size_t which, ncclResult_t result, NcclWatchdog& watchdog, size_t slot) {
  result = await_result(which, result, watchdog);
  if (result != ncclSuccess) {
    const std::string reason = gave_up_for();
    watchdog.fail(slot, reason.empty() ? nccl_failure(result) : reason);
  }
  watchdog.check();
}

ncclResult_t NcclComms::create(size_t which, const ncclUniqueId& id, const NcclSetup& setup) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = setup.blocking ? 1 : 0;
  if (setup.most_blocks > 0) config.maxCTAs = setup.most_blocks;
  const std::lock_guard lock(mutex_);
  const ncclResult_t result =
      ncclCommInitRankConfig(&written_[which], setup.world_size, id, setup.rank, &config);
  comms_[which] = written_[which];
  if (aborted_) {  // an abort that did not wait for this call could not see the communicator
    if (const ncclComm_t late = comms_[which].exchange(nullptr)) ncclCommAbort(late);
  }
  return result;
}

void NcclComms::connect(const Ids& ids, const NcclSetup& setup, NcclWatchdog& watchdog, size_t slot) {
  ZR_CHECK(ids.size() <= kMost, std::to_string(ids.size()));
  const auto operation = operate();
  blocking_ = setup.blocking;
  rank_ = setup.rank;
  for (const ncclUniqueId& id : ids) {
    const size_t which = count_++;
    const ncclResult_t result =
        blocking_
            ? await_helper(start([this, which, id, setup] { return create(which, id, setup); }), watchdog)
            : create(which, id, setup);
    finish(which, result, watchdog, slot);
  }
}

ncclComm_t NcclComms::comm_for(const CollectiveCall& call) const {
  return comms_[reduces(call) ? count_ - 1 : 0];
}

// NCCL starts the calls of a group in ncclGroupEnd(), not before.
ncclResult_t NcclComms::enqueue_all(std::span<const CollectiveCall> calls, cudaStream_t stream) {
  if (!comms_[0]) return ncclInvalidUsage;  // before locking, as in call()
  const std::lock_guard lock(mutex_);
  if (!comms_[0]) return ncclInvalidUsage;
  if (calls.size() == 1) return enqueue(calls.front(), comm_for(calls.front()), stream);
  ncclResult_t result = ncclGroupStart();
  for (size_t i = 0; i < calls.size() && !failed(result); ++i) {
    result = enqueue(calls[i], comm_for(calls[i]), stream);
  }
  const ncclResult_t end = ncclGroupEnd();
  return failed(result) ? result : end;
}

// A helper thread has a copy of the calls, because it may outlive them. NCCL may allocate buffers for the
// connections, which fails if LibTorch's cache fills the GPU.
ncclResult_t NcclComms::enqueue_first(std::span<const CollectiveCall> calls, cudaStream_t stream,
                                      const NcclWatchdog& watchdog) {
  size_t free = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess && free < kRoomToConnect) free_cached_memory();
  const std::vector<CollectiveCall> copied(calls.begin(), calls.end());
  return await_helper(start([this, copied, stream] { return enqueue_all(copied, stream); }), watchdog);
}

void NcclComms::issue(std::span<const CollectiveCall> calls, cudaStream_t stream, NcclWatchdog& watchdog,
                      size_t slot) {
  check_sums(calls);
  const uint64_t shape = shape_of(calls);
  const bool connects = blocking_ && !connected_.contains(shape);
  const ncclResult_t result = connects ? enqueue_first(calls, stream, watchdog) : enqueue_all(calls, stream);
  for (size_t which = 0; which < count_; ++which) finish(which, result, watchdog, slot);
  if (connects) connected_.insert(shape);
}

void NcclComms::issue_message(const NcclMessage& message, size_t which, cudaStream_t stream,
                              NcclWatchdog& watchdog, size_t slot) {
  const auto enqueue_it = [this, message, which, stream] {
    return call(which, [&](ncclComm_t comm) { return enqueue(message, 1 - rank_, comm, stream); });
  };
  const bool connects = blocking_ && message.is_first;
  const ncclResult_t result = connects ? await_helper(start(enqueue_it), watchdog) : enqueue_it();
  finish(which, result, watchdog, slot);
}

void NcclComms::register_memory(void* memory, size_t bytes, bool windows, NcclWatchdog& watchdog,
                                size_t slot) {
  const auto operation = operate();
  ZR_CHECK(!blocking_, "memory is registered with non-blocking communicators");
  Registration& made = registrations_.emplace_back(Registration{.memory = memory});
  for (size_t which = 0; which < count_; ++which) {
    if (windows) {
      const ncclResult_t result = call(which, [&](ncclComm_t comm) {
        return ncclCommWindowRegister(comm, memory, bytes, &made.windows[which], NCCL_WIN_COLL_SYMMETRIC);
      });
      finish(which, result, watchdog, slot);
    }
    // NCCL returns no window if the GPUs cannot access each other's memory.
    if (made.windows[which]) continue;
    const ncclResult_t result = call(
        which, [&](ncclComm_t comm) { return ncclCommRegister(comm, memory, bytes, &made.handles[which]); });
    finish(which, result, watchdog, slot);
  }
}

// Runs in a helper thread, because deregistering unmaps the memory in the other ranks' processes and waits
// for their answers.
void NcclComms::forget_memory(void* memory) {
  const auto operation = operate();
  const auto found =
      std::ranges::find_if(registrations_, [&](const Registration& other) { return other.memory == memory; });
  if (found == registrations_.end()) return;
  const Registration registration = *found;
  registrations_.erase(found);
  if (std::ranges::none_of(comms_, [](const auto& comm) { return comm.load() != nullptr; })) return;
  const std::future<ncclResult_t> done = start([this, registration] {
    deregister(registration);
    return ncclSuccess;
  });
  if (done.wait_for(patience_.with_memory) == std::future_status::ready) return;
  {
    const std::lock_guard lock(words_mutex_);
    gave_up_for_ = "NCCL could not release memory that other ranks use: one of them is stopped";
  }
  abort();
}

// Errors are ignored: the registration is released with the communicator at the latest.
void NcclComms::deregister(const Registration& registration) {
  for (size_t which = 0; which < count_; ++which) {
    call(which, [&](ncclComm_t comm) {
      if (registration.windows[which]) ncclCommWindowDeregister(comm, registration.windows[which]);
      if (registration.handles[which]) ncclCommDeregister(comm, registration.handles[which]);
      return ncclSuccess;
    });
  }
}

// Returns nothing while another NCCL call holds the lock. If that call hangs, the watchdog's timeouts still
// apply.
std::string NcclComms::failure() {
  if (std::string reason = gave_up_for(); !reason.empty()) return reason;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return "";
  for (ncclComm_t comm : comms_) {
    const ncclResult_t result = comm ? state_of(comm) : ncclSuccess;
    if (failed(result)) return nccl_failure(result);
  }
  return "";
}

// ncclCommAbort() would free memory that the running call uses. ncclCommRevoke() frees nothing: it ends the
// communicator's kernels and waits, after which the call returns. If it does not return even so, the
// communicator is left to it, since its kernels have ended.
ncclResult_t NcclComms::abort_beside_call(ncclComm_t comm) {
  if (!failed(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT))) {
    const std::unique_lock lock(mutex_, patience_.with_calls);
    if (!lock) return ncclSuccess;
  }
  return ncclCommAbort(comm);
}

// Aborts each communicator in a thread of its own. ncclCommAbort() signals the communicator's kernels to end
// and then waits for the GPU, where kernels of the other communicator may block until they are signalled too.
// If a kernel ignores the signal, the thread stays alive and keeps all memory that NCCL may write to.
//
// NCCL allows no other call during an abort. If another call does not return within `with_calls`, it waits
// for a rank that hangs, or for the GPU.
void NcclComms::abort() {
  std::unique_lock lock(mutex_, patience_.with_calls);
  const bool calling = !lock;
  aborted_ = true;
  std::array<ncclComm_t, kMost> comms{};
  std::ranges::transform(comms_, comms.begin(), [](auto& comm) { return comm.exchange(nullptr); });
  if (lock) lock.unlock();
  std::vector<std::future<ncclResult_t>> aborts;
  for (ncclComm_t comm : comms) {
    if (!comm) continue;
    aborts.push_back(
        start([this, comm, calling] { return calling ? abort_beside_call(comm) : ncclCommAbort(comm); }));
  }
  const Deadline deadline(patience_.with_abort);
  bool ended = true;
  for (auto& one : aborts) ended = ended && one.wait_until(deadline.end()) == std::future_status::ready;
  if (!ended) {
    log_warning("GPU " + std::to_string(device_) +
                " does not complete its collectives: processes that wait for it must be killed");
  }
}

// Waits until the other ranks have finalized too, or until an abort or an error ends the wait.
ncclResult_t NcclComms::finalize_all() {
  for (size_t which = 0; which < count_; ++which) {
    ncclResult_t result = call(which, [](ncclComm_t comm) { return ncclCommFinalize(comm); });
    for (int turn = 0; !failed(result); ++turn) {
      result = call(which, state_of);
      if (result != ncclInProgress) break;
      pause(turn);
    }
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

// Waits for the GPU first, because no operation may use memory that is being deregistered (NCCL's manual on
// ncclCommWindowDeregister). Finalizes after deregistering, because finalizing ends NCCL's threads, which
// deregister memory.
ncclResult_t NcclComms::leave(const std::list<Registration>& registrations) {
  if (cudaDeviceSynchronize() != cudaSuccess) return ncclUnhandledCudaError;
  for (const Registration& registration : registrations) deregister(registration);
  if (const ncclResult_t result = finalize_all(); result != ncclSuccess) return result;
  for (auto& one : comms_) {
    std::unique_lock lock(mutex_);
    const ncclComm_t comm = one.exchange(nullptr);
    lock.unlock();
    if (comm) ncclCommDestroy(comm);  // may wait for ranks on this machine, so mutex_ is not locked
  }
  return ncclSuccess;
}

void NcclComms::close() {
  const auto operation = operate();
  std::future<ncclResult_t> left =
      start([this, registrations = std::exchange(registrations_, {})] { return leave(registrations); });
  if (left.wait_for(patience_.with_close) == std::future_status::ready && left.get() == ncclSuccess) return;
  abort();
}

}  // namespace zerorun
