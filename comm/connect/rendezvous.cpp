#include "comm/connect/rendezvous.h"

#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/cuda_driver.h"
#include "base/error.h"
#include "base/gpu_presence.h"
#include "base/join_board.h"
#include "base/log.h"
#include "base/process.h"
#include "comm/connect/cuda_library.h"
#include "comm/connect/two_levels.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/exchange.h"
#include "comm/meeting/store.h"
#include "comm/shared_memory/shared_memory_communicator.h"
#include "comm/thread_communicator.h"
#include "device/running_torch.h"

namespace zerorun {
namespace {

// Before main(): a program uses LibTorch before it connects. This file is part of every program that does.
[[maybe_unused]] const bool fits = require_running_torch();

// Returns why this process cannot train on GPUs; empty if it can. Sets `gpus` to the number of GPUs that the
// driver reports.
std::string obstacle_to_cuda(int& gpus) {
  std::string reason;
  return count_usable_gpus(reason, &gpus) == 0 ? reason : cuda_library().failure;
}

constexpr char kAsked[] = "training on GPUs was requested (--device cuda, ZERORUN_DEVICE=cuda), but ";
constexpr char kAskForCpu[] = ": --device cpu (or ZERORUN_DEVICE=cpu) trains on the CPU";

// Whether this rank should train on its GPU. Throws if there is a GPU that it cannot use: training on the CPU
// instead would hide that a GPU or its driver is broken.
bool wants_cuda(const Environment& environment) {
  if (environment.device == DeviceChoice::cpu) return false;
  int gpus = 0;
  const std::string obstacle = obstacle_to_cuda(gpus);
  if (obstacle.empty()) return true;
  if (environment.device == DeviceChoice::cuda) throw UserError(kAsked + obstacle);
  const bool hidden = hides_all_gpus(std::getenv("CUDA_VISIBLE_DEVICES"));
  if (gpus > 0 || (!hidden && has_gpus(has_cuda_driver())))
    throw UserError("this machine has a GPU that training cannot use: " + obstacle + kAskForCpu);
  return false;
}

constexpr char kOnCpu[] = "cpu";
constexpr char kOnCuda[] = "cuda";

// Returns whether all ranks train on GPUs. Throws on every rank if only some can: the words that they joined
// with are kOnCuda or kOnCpu.
bool all_on_cuda(const Environment& environment, const Joined& joined, const Deadline& deadline) {
  std::vector<int> others;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    if (joined.words[rank] != kOnCuda) others.push_back(rank);
  }
  if (others.empty()) return true;
  if (static_cast<int>(others.size()) == environment.world_size) return false;
  keep_store_until_read(*joined.store, environment.rank, environment.world_size, deadline);
  const std::string reason = "every rank needs a GPU that it can use, but " + name_ranks(others) +
                             " found none, or ZERORUN_DEVICE=cpu is set there" + kAskForCpu;
  throw UserError((environment.device == DeviceChoice::cuda ? kAsked : "some ranks have a GPU: ") + reason);
}

constexpr char kGloo[] = "gloo";
constexpr char kSharedMemory[] = "shm";
constexpr char kTwoLevels[] = "two-level";

const char* word_of(CommChoice choice) {
  switch (choice) {
    case CommChoice::automatic:
      return "auto";
    case CommChoice::shared_memory:
      return kSharedMemory;
    case CommChoice::two_levels:
      return kTwoLevels;
    case CommChoice::gloo:
      break;
  }
  return kGloo;
}

// The transports that the ranks' settings allow. All ranks exchange these, because all must use the same one.
struct Wishes {
  bool shared_memory = false;  // a rank demands it
  bool two_levels = false;     // a rank demands them
  std::string obstacle;        // why neither must be used; empty: one may

  Wishes(const Environment& environment, const StorePointer& store, const Deadline& deadline) {
    const std::vector<std::string> words =
        exchange_words(*store->part("comm"), "choice", environment.rank, environment.world_size,
                       word_of(environment.comm), deadline);
    shared_memory = std::ranges::count(words, kSharedMemory) > 0;
    two_levels = std::ranges::count(words, kTwoLevels) > 0;
    if (shared_memory && two_levels) {
      obstacle = "some ranks are told to use shared memory and some to use two levels (--comm, ZERORUN_COMM)";
      return;
    }
    const auto refusing = std::ranges::find(words, kGloo);
    if (refusing == words.end()) return;
    obstacle =
        "rank " + std::to_string(refusing - words.begin()) + " is told to use Gloo (--comm, ZERORUN_COMM)";
  }
};

[[noreturn]] void refuse(const std::string& demand, const std::string& reason, const Environment& environment,
                         const StorePointer& store, const Deadline& deadline) {
  keep_store_until_read(*store, environment.rank, environment.world_size, deadline);
  throw UserError(demand + ", but " + reason);
}

constexpr char kAskedForSharedMemory[] = "shared memory was requested (--comm shm, ZERORUN_COMM=shm)";
constexpr char kAskedForTwoLevels[] = "two levels were requested (--comm two-level, ZERORUN_COMM=two-level)";

std::shared_ptr<Communicator> connect_on_cpu(const Environment& environment, const Joined& joined,
                                             const Deadline& deadline) {
  const StorePointer& store = joined.store;
  const Wishes wishes(environment, store, deadline);
  std::string obstacle = wishes.obstacle;
  std::shared_ptr<Communicator> communicator;
  if (obstacle.empty() && wishes.two_levels) {
    communicator = connect_in_two_levels(environment, joined, deadline, obstacle);
  } else if (obstacle.empty()) {
    communicator =
        make_shared_memory_communicator(RanksOfHost::all(environment.rank, environment.world_size), store,
                                        joined.job, environment.timeout, deadline, obstacle);
  }
  if (communicator) return communicator;
  if (wishes.two_levels) refuse(kAskedForTwoLevels, obstacle, environment, store, deadline);
  if (wishes.shared_memory) refuse(kAskedForSharedMemory, obstacle, environment, store, deadline);
  if (environment.rank == 0 && wishes.obstacle.empty())
    log_info("collectives use Gloo instead of shared memory: " + obstacle);
  return make_gloo_communicator(environment, store, deadline);
}

}  // namespace

std::shared_ptr<Communicator> connect(const Environment& environment) {
  c10::initLogging();  // reads TORCH_CPP_LOG_LEVEL; otherwise only Python's torch does
  bool on_cuda = wants_cuda(environment);
  StorePointer store;
  std::shared_ptr<Communicator> communicator;
  if (environment.world_size == 1) {
    communicator = make_thread_communicators(1, environment.timeout).front();
  } else {
    const Deadline deadline(environment.timeout);
    const Joining joining(environment.local_rank, environment.world_size);
    const Joined joined = join_store(environment, on_cuda ? kOnCuda : kOnCpu, deadline);
    store = joined.store;
    on_cuda = all_on_cuda(environment, joined, deadline);
    if (on_cuda) {
      const Wishes wishes(environment, store, deadline);
      if (wishes.shared_memory || wishes.two_levels)
        refuse(wishes.shared_memory ? kAskedForSharedMemory : kAskedForTwoLevels,
               "the ranks train on GPUs, over NCCL: leave that out, or train on the CPU (--device cpu)",
               environment, store, deadline);
    }
    communicator = on_cuda ? make_gloo_communicator(environment, store, deadline)
                           : connect_on_cpu(environment, joined, deadline);
    // Else, if the program on rank 0 ended at once, ranks that are still connecting would report a lost
    // store. A rank that has ended is not waited for long.
    const Deadline soon(std::min<std::chrono::milliseconds>(environment.timeout, std::chrono::seconds(4)));
    keep_store_until_read(*store, environment.rank, environment.world_size, soon, "connected");
  }
  if (on_cuda) {
    const auto control = std::move(communicator);
    cuda_library().connect(environment, control, store, communicator);
  }
  communicator->set_first_on_host(environment.local_rank == 0);
  return kept_by_forks(std::move(communicator));
}

}  // namespace zerorun
