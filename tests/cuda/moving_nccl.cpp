#include "tests/cuda/moving_nccl.h"

#include <nccl.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "cuda/cached_memory.h"

namespace zerorun::testing::moving {

// One rank's part of a collective.
struct Part {
  std::string what;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // of elements, as NCCL counts them
  size_t width = 1;  // bytes of an element
  int root = 0;
};

struct Meeting {
  std::map<int, Part> parts;  // by rank
  bool done = false;
  bool agreed = true;
};

// The ranks of a communicator. Its members are under the mutex of all.
struct Clique {
  int number = 0;
  int size = 0;
  int joined = 0;
  bool aborted = false;
  std::map<uint64_t, std::shared_ptr<Meeting>> meetings = {};        // by number of the collective
  std::map<std::pair<int, int>, std::deque<std::string>> mail = {};  // by sender and receiver
};

std::mutex mutex;
std::condition_variable changed;
std::map<uint64_t, std::shared_ptr<Clique>> cliques;  // by id
std::map<int, std::vector<Launch>> launches;          // by GPU
uint64_t ids = 0;
std::chrono::milliseconds patience = std::chrono::seconds(30);

thread_local int group_depth = 0;
thread_local std::vector<std::function<ncclResult_t()>> group;

int current_gpu() {
  int gpu = 0;
  cudaGetDevice(&gpu);
  return gpu;
}

size_t width_of(ncclDataType_t type) {
  return type == ncclUint8 ? 1 : type == ncclFloat32 ? sizeof(float) : 0;
}

// Output element `to` + i = the sum over ranks of input element `from` + i.
void add_up(const std::map<int, Part>& parts, const Part& receiver, size_t from) {
  std::vector<float> sums(receiver.count, 0);
  for (const auto& [rank, part] : parts) {
    const auto* input = static_cast<const float*>(part.input) + from;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += input[i];
  }
  std::memcpy(receiver.output, sums.data(), sums.size() * sizeof(float));
}

// Outputs may be parts of inputs, in place: so everything is read before anything is written.
void exchange(const std::map<int, Part>& given) {
  std::map<int, Part> parts = given;
  std::map<int, std::string> copies;
  for (auto& [rank, part] : parts) {
    const size_t elements = part.count * (part.what == "reduce_scatter" ? parts.size() : 1);
    copies[rank].assign(static_cast<const char*>(part.input), elements * part.width);
    part.input = copies[rank].data();
  }
  for (const auto& [rank, part] : parts) {
    const size_t bytes = part.count * part.width;
    if (part.what == "all_reduce") add_up(parts, part, 0);
    if (part.what == "reduce_scatter") add_up(parts, part, static_cast<size_t>(rank) * part.count);
    if (part.what == "broadcast") std::memcpy(part.output, parts.at(part.root).input, bytes);
    if (part.what != "all_gather") continue;
    for (const auto& [from, other] : parts)
      std::memcpy(static_cast<char*>(part.output) + static_cast<size_t>(from) * bytes, other.input, bytes);
  }
}

bool agree(const Part& a, const Part& b) {
  return a.what == b.what && a.count == b.count && a.width == b.width && a.root == b.root;
}

// Waits for a condition under the mutex. Returns false if it has not come true in time.
template <typename Condition>
bool wait(std::unique_lock<std::mutex>& lock, const Clique& clique, const Condition& condition) {
  changed.wait_for(lock, patience, [&] { return clique.aborted || condition(); });
  return condition();
}

// What an ncclComm_t of this NCCL points to.
struct Member {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  uint64_t collectives = 0;
};
std::deque<Member> members;  // never freed, as threads of NCCL may have one

Member* member_of(ncclComm_t comm) {
  return reinterpret_cast<Member*>(comm);
}

ncclResult_t in_order(const std::function<ncclResult_t()>& launch) {
  if (group_depth == 0) return launch();
  group.push_back(launch);
  return ncclSuccess;
}

ncclResult_t collect(ncclComm_t to, const Part& part) {
  if (part.width == 0) return ncclInvalidArgument;
  return in_order([comm = member_of(to), part] {
    std::unique_lock lock(mutex);
    Clique& clique = *comm->clique;
    launches[current_gpu()].push_back({clique.number, part.what, part.count * part.width});
    auto& entry = clique.meetings[comm->collectives++];
    if (!entry) entry = std::make_shared<Meeting>();
    const std::shared_ptr<Meeting> meeting = entry;
    for (const auto& [rank, other] : meeting->parts) meeting->agreed = meeting->agreed && agree(part, other);
    meeting->parts[comm->rank] = part;
    if (static_cast<int>(meeting->parts.size()) == clique.size) {
      if (meeting->agreed) exchange(meeting->parts);
      meeting->done = true;
      changed.notify_all();
    }
    const bool done = wait(lock, clique, [&] { return meeting->done; });
    return done && meeting->agreed ? ncclSuccess : ncclInternalError;
  });
}

ncclResult_t end(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  member_of(comm)->clique->aborted = true;
  changed.notify_all();
  return ncclSuccess;
}

}  // namespace zerorun::testing::moving

namespace zerorun::testing {

std::vector<Launch> launches_of(int gpu) {
  const std::lock_guard lock(moving::mutex);
  return moving::launches[gpu];
}

void reset_moving_nccl(std::chrono::milliseconds patience) {
  const std::lock_guard lock(moving::mutex);
  moving::launches.clear();
  moving::patience = patience;
}

}  // namespace zerorun::testing

// Replaces the function that empties LibTorch's cache, which needs a GPU.
void zerorun::free_cached_memory() {}

namespace moving = zerorun::testing::moving;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(moving::mutex);
  *id = {};
  ++moving::ids;
  std::memcpy(id->internal, &moving::ids, sizeof moving::ids);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  std::unique_lock lock(moving::mutex);
  std::shared_ptr<moving::Clique>& entry = moving::cliques[number];
  if (!entry) entry.reset(new moving::Clique{.number = static_cast<int>(number), .size = size});
  const std::shared_ptr<moving::Clique> clique = entry;
  *comm = reinterpret_cast<ncclComm_t>(&moving::members.emplace_back(moving::Member{clique, rank}));
  ++clique->joined;
  moving::changed.notify_all();
  return moving::wait(lock, *clique, [&] { return clique->joined == size; }) ? ncclSuccess
                                                                             : ncclInternalError;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t) {
  return moving::collect(comm, {"all_gather", from, to, count, moving::width_of(type)});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t) {
  return moving::collect(comm, {"reduce_scatter", from, to, count, moving::width_of(type)});
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t) {
  return moving::collect(comm, {"all_reduce", from, to, count, moving::width_of(type)});
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t) {
  return moving::collect(comm, {"broadcast", from, to, count, moving::width_of(type), root});
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int other, ncclComm_t comm,
                      cudaStream_t) {
  const size_t bytes = count * moving::width_of(type);
  return moving::in_order([=] {
    const std::lock_guard lock(moving::mutex);
    moving::Clique& clique = *moving::member_of(comm)->clique;
    moving::launches[moving::current_gpu()].push_back({clique.number, "send", bytes});
    clique.mail[{moving::member_of(comm)->rank, other}].emplace_back(static_cast<const char*>(from), bytes);
    moving::changed.notify_all();
    return ncclSuccess;
  });
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int other, ncclComm_t comm, cudaStream_t) {
  const size_t bytes = count * moving::width_of(type);
  return moving::in_order([=] {
    std::unique_lock lock(moving::mutex);
    moving::Clique& clique = *moving::member_of(comm)->clique;
    moving::launches[moving::current_gpu()].push_back({clique.number, "receive", bytes});
    std::deque<std::string>& mail = clique.mail[{other, moving::member_of(comm)->rank}];
    if (!moving::wait(lock, clique, [&] { return !mail.empty(); })) return ncclInternalError;
    if (mail.front().size() != bytes) return ncclInvalidArgument;
    std::memcpy(to, mail.front().data(), bytes);
    mail.pop_front();
    return ncclSuccess;
  });
}
ncclResult_t ncclGroupStart() {
  ++moving::group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--moving::group_depth > 0) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  for (const auto& launch : std::exchange(moving::group, {})) {
    if (result == ncclSuccess) result = launch();
  }
  return result;
}
ncclResult_t ncclCommFinalize(ncclComm_t) {
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t) {
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return moving::end(comm);
}
ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  return moving::end(comm);
}
const char* ncclGetErrorString(ncclResult_t) {
  return "a failure";
}
const char* ncclGetLastError(ncclComm_t) {
  return "";
}

// Memory is not registered here.
ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void**) {
  return ncclInvalidUsage;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) {
  return ncclInvalidUsage;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t*, int) {
  return ncclInvalidUsage;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) {
  return ncclInvalidUsage;
}
ncclResult_t ncclMemAlloc(void**, size_t) {
  return ncclInvalidUsage;
}
ncclResult_t ncclMemFree(void*) {
  return ncclInvalidUsage;
}

}  // extern "C"
