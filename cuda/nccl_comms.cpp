#include "cuda/nccl_comms.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/deadline.h"

namespace zerorun {
namespace {

using std::chrono::microseconds;

std::string words_for(ncclResult_t result) {
  const char* details = ncclGetLastError(nullptr);
  std::string words = std::string("NCCL failed: ") + ncclGetErrorString(result);
  if (details && *details) words += std::string(" (") + details + ")";
  return words + "; NCCL_DEBUG=INFO tells more";
}

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

ncclDataType_t type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return ncclUint8;
    case at::kChar:
      return ncclInt8;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    default:
      ZR_CHECK(false, std::string("no sums of ") + c10::toString(dtype));
  }
}

bool reduces(const CollectiveCall& call) {
  return call.kind == Collective::reduce_scatter || call.kind == Collective::all_reduce;
}

ncclResult_t enqueue_one(const CollectiveCall& call, ncclComm_t comm, cudaStream_t stream) {
  const void* from = call.input.const_data_ptr();
  void* to = call.output.mutable_data_ptr();
  switch (call.kind) {
    case Collective::reduce_scatter:
      return ncclReduceScatter(from, to, call.output.numel(), type_of(call.output.scalar_type()), ncclSum,
                               comm, stream);
    case Collective::all_gather:
      return ncclAllGather(from, to, call.input.nbytes(), ncclUint8, comm, stream);
    case Collective::all_reduce:
      return ncclAllReduce(from, to, call.output.numel(), type_of(call.output.scalar_type()), ncclSum, comm,
                           stream);
    case Collective::broadcast:
      return ncclBroadcast(from, to, call.output.nbytes(), ncclUint8, call.root, comm, stream);
    case Collective::barrier:
      break;
  }
  ZR_CHECK(false, std::string(name_of(call.kind)) + " on a GPU");
}

}  // namespace

NcclComms::Ids NcclComms::make_ids(size_t count) {
  Ids ids(count);
  for (ncclUniqueId& id : ids) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) {
      throw CommError(words_for(result) + " (NCCL_SOCKET_IFNAME names the network interface to use)");
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
// NCCL takes.
std::future<bool> NcclComms::start(std::function<bool()> work) {
  std::packaged_task<bool()> task([self = shared_from_this(), work = std::move(work)] {
    cudaSetDevice(self->device_);
    return work();
  });
  std::future<bool> result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

std::string NcclComms::gave_up_for() {
  const std::lock_guard lock(words_mutex_);
  return gave_up_for_;
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
    watchdog.fail(slot, reason.empty() ? words_for(result) : reason);
  }
  watchdog.check();
}

void NcclComms::connect(const Ids& ids, int rank, int world_size, int most_blocks, NcclWatchdog& watchdog,
                        size_t slot) {
  ZR_CHECK(ids.size() <= kMost, std::to_string(ids.size()));
  const auto operation = operate();
  for (const ncclUniqueId& id : ids) {
    const size_t which = count_++;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (most_blocks > 0) config.maxCTAs = most_blocks;
    ncclResult_t result;
    {
      const std::lock_guard lock(mutex_);
      result = ncclCommInitRankConfig(&written_[which], world_size, id, rank, &config);
      comms_[which] = written_[which];
    }
    finish(which, result, watchdog, slot);
  }
}

ncclComm_t NcclComms::comm_for(const CollectiveCall& call) const {
  return comms_[reduces(call) ? count_ - 1 : 0];
}

// NCCL starts the calls of a group in ncclGroupEnd(), not before.
ncclResult_t NcclComms::enqueue(std::span<const CollectiveCall> calls, cudaStream_t stream) {
  for (const CollectiveCall& call : calls) {
    if (reduces(call)) type_of(call.output.scalar_type());  // throws before a group is open
  }
  if (!comms_[0]) return ncclInvalidUsage;  // before locking, as in call()
  const std::lock_guard lock(mutex_);
  if (!comms_[0]) return ncclInvalidUsage;
  if (calls.size() == 1) return enqueue_one(calls.front(), comm_for(calls.front()), stream);
  ncclResult_t result = ncclGroupStart();
  for (size_t i = 0; i < calls.size() && !failed(result); ++i) {
    result = enqueue_one(calls[i], comm_for(calls[i]), stream);
  }
  const ncclResult_t end = ncclGroupEnd();
  return failed(result) ? result : end;
}

void NcclComms::issue(std::span<const CollectiveCall> calls, cudaStream_t stream, NcclWatchdog& watchdog,
                      size_t slot) {
  const ncclResult_t result = enqueue(calls, stream);
  for (size_t which = 0; which < count_; ++which) finish(which, result, watchdog, slot);
}

void NcclComms::register_memory(void* memory, size_t bytes, bool windows, NcclWatchdog& watchdog,
                                size_t slot) {
  const auto operation = operate();
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
  const std::future<bool> done = start([this, registration] {
    deregister(registration);
    return true;
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
    if (failed(result)) return words_for(result);
  }
  return "";
}

// Aborts each communicator in a thread of its own. ncclCommAbort() signals the communicator's kernels to end
// and then waits for the GPU, where kernels of the other communicator may block until they are signalled too.
// If a kernel ignores the signal, the thread stays alive and keeps all memory that NCCL may write to.
//
// NCCL allows no other call during an abort. If another call does not return within `with_calls`, it is
// waiting for a rank that hangs. Only an abort ends that wait, so this function then aborts although the call
// is still running.
void NcclComms::abort() {
  std::array<ncclComm_t, kMost> comms{};
  {
    const std::unique_lock lock(mutex_, patience_.with_calls);
    std::ranges::transform(comms_, comms.begin(), [](auto& comm) { return comm.exchange(nullptr); });
  }
  std::vector<std::future<bool>> aborts;
  for (ncclComm_t comm : comms) {
    if (comm) aborts.push_back(start([comm] { return ncclCommAbort(comm) == ncclSuccess; }));
  }
  const Deadline deadline(patience_.with_abort);
  bool ended = true;
  for (auto& one : aborts) ended = ended && one.wait_until(deadline.end()) == std::future_status::ready;
  if (!ended) {
    log_warning("GPU " + std::to_string(device_) +
                " does not complete its collectives: processes that wait for it must be killed");
  }
}

// Waits until the other ranks have finalized too. Returns false if an abort or an error ends the wait.
bool NcclComms::finalize_all() {
  for (size_t which = 0; which < count_; ++which) {
    ncclResult_t result = call(which, [](ncclComm_t comm) { return ncclCommFinalize(comm); });
    for (int turn = 0; !failed(result); ++turn) {
      result = call(which, state_of);
      if (result != ncclInProgress) break;
      pause(turn);
    }
    if (result != ncclSuccess) return false;
  }
  return true;
}

// Waits for the GPU first, because no operation may use memory that is being deregistered (NCCL's manual on
// ncclCommWindowDeregister). Finalizes after deregistering, because finalizing ends NCCL's threads, which
// deregister memory.
bool NcclComms::leave(const std::list<Registration>& registrations) {
  if (cudaDeviceSynchronize() != cudaSuccess) return false;
  for (const Registration& registration : registrations) deregister(registration);
  if (!finalize_all()) return false;
  for (auto& one : comms_) {
    std::unique_lock lock(mutex_);
    const ncclComm_t comm = one.exchange(nullptr);
    lock.unlock();
    if (comm) ncclCommDestroy(comm);  // may wait for ranks on this machine, so mutex_ is not locked
  }
  return true;
}

void NcclComms::close() {
  const auto operation = operate();
  std::future<bool> left =
      start([this, registrations = std::exchange(registrations_, {})] { return leave(registrations); });
  if (left.wait_for(patience_.with_close) == std::future_status::ready && left.get()) return;
  abort();
}

}  // namespace zerorun
