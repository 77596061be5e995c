// A rank whose NCCL is the fake one, with its communicators and their watchdog.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/nccl_comms.h"
#include "tests/cuda/fake_nccl.h"

namespace zerorun::testing {

// Reports that every collective has started and has not finished.
class EndlessProbe : public CollectiveProbe {
 public:
  explicit EndlessProbe(NcclComms& comms) : comms_(comms) {}
  void prepare(size_t) override {}
  bool started(size_t) override { return true; }
  bool finished(size_t) override { return false; }
  std::string failure() override { return comms_.failure(); }
  void abort() override { comms_.abort(); }

 private:
  NcclComms& comms_;
};

inline constexpr NcclPatience kPatience = {.with_calls = std::chrono::milliseconds(50),
                                           .with_memory = std::chrono::milliseconds(100),
                                           .with_close = std::chrono::milliseconds(200),
                                           .with_abort = std::chrono::seconds(10)};

inline constexpr bool kBlocking = true;
inline constexpr bool kNonBlocking = false;

struct Rank {
  explicit Rank(bool blocking = kNonBlocking, size_t communicators = 2,
                std::chrono::milliseconds timeout = std::chrono::seconds(60), int polls = 3,
                const NcclPatience& patience = kPatience)
      : comms(std::make_shared<NcclComms>(0, patience)),
        probe(*comms),
        watchdog({.timeout = timeout, .period = std::chrono::milliseconds(1)}, probe, nullptr) {
    fake_nccl().reset();
    fake_nccl().take(polls);
    watchdog.start();
    const size_t slot = watchdog.begin_on_host("connecting");
    const NcclSetup setup = {.rank = 0, .world_size = 2, .blocking = blocking};
    comms->connect(NcclComms::make_ids(communicators), setup, watchdog, slot);
    watchdog.end(slot);
  }
  ~Rank() { watchdog.stop(); }

  void start(const std::vector<CollectiveCall>& calls) {
    const auto operation = comms->operate();
    const size_t slot = watchdog.take();
    watchdog.begin(slot, calls, nullptr);
    comms->issue(calls, nullptr, watchdog, slot);
    watchdog.enqueued(slot);
  }
  void start(Collective kind) { start({call_of(kind)}); }

  void register_memory(void* memory, bool windows) {
    const size_t slot = watchdog.begin_on_host("allocation");
    comms->register_memory(memory, 4096, windows, watchdog, slot);
    watchdog.end(slot);
  }

  static CollectiveCall call_of(Collective kind, int64_t numel = 8) {
    const at::Tensor tensor = at::zeros({numel});
    return {kind, tensor, tensor, 0, "bucket 3", {}};
  }

  std::shared_ptr<NcclComms> comms;
  EndlessProbe probe;
  NcclWatchdog watchdog;
};

// Waits until the condition is true, at most a minute.
inline void wait_until(const std::function<bool()>& condition) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition() && std::chrono::steady_clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline ptrdiff_t times_done(const std::string& what) {
  const std::vector<std::string> done = fake_nccl().done();
  return std::ranges::count(done, what);
}

// Returns the last two words as a set, since their order depends on the threads.
inline std::set<std::string> last_two(const std::vector<std::string>& words) {
  return {words.end() - std::min<ptrdiff_t>(2, std::ssize(words)), words.end()};
}

// Returns the words from number `first` on as a set.
inline std::set<std::string> all_after(size_t first) {
  const std::vector<std::string> done = fake_nccl().done();
  return {done.begin() + static_cast<ptrdiff_t>(first), done.end()};
}

}  // namespace zerorun::testing
