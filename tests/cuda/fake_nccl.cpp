#include "tests/cuda/fake_nccl.h"

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "cuda/cached_memory.h"
#include "tests/cuda/fake_cuda.h"

// Objects of this type are never freed, so that use after destruction is detected.
struct ncclComm {
  int number = 0;
  bool blocking = false;           // requests are done when they return
  int polls = 0;                   // number of polls until the last request is done; -1: never done
  std::atomic<int> calls = 0;      // number of calls that are running now
  std::atomic<bool> told = false;  // an abort, a revocation or a destruction has begun
  std::atomic<bool> gone = false;  // an abort or a destruction has ended
};

namespace zerorun::testing {

// A running call of NCCL. Records a violation if another call on the communicator is running.
class FakeNccl::Call {
 public:
  Call(FakeNccl& nccl, ncclComm* comm, const std::string& what) : comm_(comm) {
    const std::string name = what + " " + std::to_string(comm->number);
    if (comm->calls.fetch_add(1) > 0) nccl.violations_.push_back(name + " during another call");
    if (comm->gone) nccl.violations_.push_back(name + " of a communicator that is gone");
  }
  ~Call() { --comm_->calls; }

 private:
  ncclComm* comm_;
};

void FakeNccl::reset() {
  const std::lock_guard lock(mutex_);
  comms_.clear();
  done_.clear();
  threads_.clear();
  group_.clear();
  violations_.clear();
  polls_ = 0;
  held_.clear();
  has_windows_ = true;
  requests_ = reported_ = ncclSuccess;
  full_ = cached_ = false;
  fake_cuda().on_synchronize = [] { fake_nccl().await_gpu(); };
}

void FakeNccl::take(int polls) {
  const std::lock_guard lock(mutex_);
  polls_ = polls;
}

void FakeNccl::fail_requests(ncclResult_t result) {
  const std::lock_guard lock(mutex_);
  requests_ = result;
}

void FakeNccl::report(ncclResult_t result) {
  const std::lock_guard lock(mutex_);
  reported_ = result;
}

void FakeNccl::hold(const std::string& what) {
  const std::lock_guard lock(mutex_);
  held_ = what;
}

void FakeNccl::let_go() {
  hold("");
}

void FakeNccl::wait_if_held(std::unique_lock<std::mutex>& lock, ncclComm* comm, const std::string& what) {
  while (what == held_ && (what == "destroy" || !comm->told)) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
}

std::vector<std::string> FakeNccl::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

bool FakeNccl::done_here(size_t index) const {
  const std::lock_guard lock(mutex_);
  return threads_.at(index) == std::this_thread::get_id();
}

void FakeNccl::note_done(const std::string& what) {
  done_.push_back(what);
  threads_.push_back(std::this_thread::get_id());
}

std::vector<std::string> FakeNccl::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

void FakeNccl::take_windows_away() {
  const std::lock_guard lock(mutex_);
  has_windows_ = false;
}

bool FakeNccl::has_windows() const {
  const std::lock_guard lock(mutex_);
  return has_windows_;
}

ncclComm* FakeNccl::make(bool blocking) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(new ncclComm);
  comms_.back()->blocking = blocking;
  comms_.back()->number = static_cast<int>(comms_.size()) - 1;
  return comms_.back();
}

void FakeNccl::start_group() {
  const std::lock_guard lock(mutex_);
  grouping_ = true;
  group_.clear();
  note_done("group");
}

ncclResult_t FakeNccl::end_group() {
  std::unique_lock lock(mutex_);
  grouping_ = false;
  note_done("end of group");
  const std::vector<ncclComm*> group = std::exchange(group_, {});
  ncclResult_t result = requests_;
  for (ncclComm* comm : group) {
    if (comm->blocking && !block(lock, comm, "end of group")) result = ncclInternalError;
    if (!comm->blocking && result == ncclSuccess) result = ncclInProgress;
  }
  return result;
}

// Waits as a request of a blocking communicator does. Returns false if an abort has ended the wait.
bool FakeNccl::block(std::unique_lock<std::mutex>& lock, ncclComm* comm, const std::string& what) {
  while ((what == held_ || polls_ == -1) && !comm->told) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
  return !comm->told;
}

ncclResult_t FakeNccl::request(ncclComm* comm, const std::string& what) {
  std::unique_lock lock(mutex_);
  const Call call(*this, comm, what);
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(20));
  lock.lock();
  note_done(what + " " + std::to_string(comm->number));
  if (comm->polls != 0 && !grouping_)
    violations_.push_back(done_.back() + " before the last request was settled");
  if (grouping_) group_.push_back(comm);
  if (requests_ != ncclSuccess) return requests_;
  if (comm->blocking) return grouping_ || block(lock, comm, what) ? ncclSuccess : ncclInternalError;
  comm->polls = polls_;
  return grouping_ || comm->polls == 0 ? ncclSuccess : ncclInProgress;
}

void FakeNccl::note(ncclComm* comm, const std::string& what) {
  std::unique_lock lock(mutex_);
  const Call call(*this, comm, what);
  wait_if_held(lock, comm, what);
  note_done(what + " " + std::to_string(comm->number));
  if (comm->polls != 0) violations_.push_back(done_.back() + " before the last request was settled");
}

ncclResult_t FakeNccl::state(ncclComm* comm) {
  const std::lock_guard lock(mutex_);
  const Call call(*this, comm, "state");
  if (comm->polls > 0) --comm->polls;
  return comm->polls != 0 ? ncclInProgress : reported_;
}

// An abort waits until the GPU is idle. The GPU becomes idle only after aborts of all communicators have
// begun.
ncclResult_t FakeNccl::end(ncclComm* comm, const std::string& what) {
  std::unique_lock lock(mutex_);
  const Call call(*this, comm, what);
  const std::vector<ncclComm*> comms = comms_;
  note_done(what + " " + std::to_string(comm->number));
  comm->told = true;
  wait_if_held(lock, comm, what);
  lock.unlock();
  for (ncclComm* other : comms) {
    while (what == "abort" && !other->told) std::this_thread::yield();
  }
  comm->gone = true;
  return ncclSuccess;
}

// Unlike an abort, a revocation is allowed while a call runs.
ncclResult_t FakeNccl::revoke(ncclComm* comm) {
  const std::lock_guard lock(mutex_);
  note_done("revoke " + std::to_string(comm->number));
  if (comm->gone) violations_.push_back(done_.back() + " of a communicator that is gone");
  comm->told = true;
  return ncclSuccess;
}

void FakeNccl::fill_memory(bool with_cache) {
  const std::lock_guard lock(mutex_);
  full_ = true;
  cached_ = with_cache;
}

ncclResult_t FakeNccl::allocate(void** memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  note_done(full_ ? "no memory" : "allocate");
  if (full_) return ncclUnhandledCudaError;
  *memory = ::operator new(bytes);
  return ncclSuccess;
}

void FakeNccl::free_cache() {
  const std::lock_guard lock(mutex_);
  note_done("free cache");
  if (std::exchange(cached_, false)) full_ = false;
}

void FakeNccl::await_gpu() {
  std::unique_lock lock(mutex_);
  note_done("GPU idle");
  for (ncclComm* comm : std::vector(comms_)) wait_if_held(lock, comm, "GPU");
}

FakeNccl& fake_nccl() {
  static FakeNccl nccl;
  return nccl;
}

}  // namespace zerorun::testing

// Replaces the function that empties LibTorch's cache, which needs a GPU.
void zerorun::free_cached_memory() {
  testing::fake_nccl().free_cache();
}

using zerorun::testing::fake_nccl;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t* config) {
  *comm = fake_nccl().make(config->blocking != 0);
  return fake_nccl().request(*comm, "connect");
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = fake_nccl().state(comm);
  return ncclSuccess;
}
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t comm, cudaStream_t) {
  return fake_nccl().request(comm, "all_gather");
}
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t comm,
                               cudaStream_t) {
  return fake_nccl().request(comm, "reduce_scatter");
}
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t) {
  return fake_nccl().request(comm, "all_reduce");
}
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t comm, cudaStream_t) {
  return fake_nccl().request(comm, "broadcast");
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t comm, cudaStream_t) {
  return fake_nccl().request(comm, "send");
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t comm, cudaStream_t) {
  return fake_nccl().request(comm, "receive");
}
ncclResult_t ncclGroupStart() {
  fake_nccl().start_group();
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  return fake_nccl().end_group();
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t, void** handle) {
  *handle = memory;
  return fake_nccl().request(comm, "register");
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  fake_nccl().note(comm, "deregister");
  return ncclSuccess;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t, ncclWindow_t* window, int) {
  *window = fake_nccl().has_windows() ? static_cast<ncclWindow_t>(memory) : nullptr;
  const ncclResult_t result = fake_nccl().request(comm, "window");
  return result == ncclInProgress ? ncclSuccess : result;  // as NCCL does, although the request still runs
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  fake_nccl().note(comm, "no window");
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return fake_nccl().request(comm, "finalize");
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return fake_nccl().end(comm, "destroy");
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return fake_nccl().end(comm, "abort");
}
ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  return fake_nccl().revoke(comm);
}
ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  return fake_nccl().allocate(memory, bytes);
}
ncclResult_t ncclMemFree(void* memory) {
  ::operator delete(memory);
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "a failure";
}
const char* ncclGetLastError(ncclComm_t) {
  return "";
}

}  // extern "C"
