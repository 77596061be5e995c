// Tests the use of NCCL's communicators, blocking and non-blocking, with a fake NCCL. The fake records
// forbidden calls: a request before the previous one is done, a call during another call, and a call after an
// abort.
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <thread>

#include "base/error.h"
#include "cuda/nccl_comms.h"
#include "cuda/nccl_memory.h"
#include "cuda/stream_probe.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/cuda/fake_nccl.h"
#include "tests/support/temporary_folder.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using namespace std::chrono_literals;
using testing::fake_cuda;
using testing::fake_nccl;
using Words = std::vector<std::string>;

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

constexpr NcclPatience kPatience = {
    .with_calls = 50ms, .with_memory = 100ms, .with_close = 200ms, .with_abort = 10s};

constexpr bool kBlocking = true;
constexpr bool kNonBlocking = false;

struct Rank {
  explicit Rank(bool blocking = kNonBlocking, size_t communicators = 2,
                std::chrono::milliseconds timeout = 60s, int polls = 3,
                const NcclPatience& patience = kPatience)
      : comms(std::make_shared<NcclComms>(0, patience)),
        probe(*comms),
        watchdog({.timeout = timeout, .period = 1ms}, probe, nullptr) {
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
void wait_until(const std::function<bool()>& condition) {
  const auto patience = std::chrono::steady_clock::now() + 60s;
  while (!condition() && std::chrono::steady_clock::now() < patience) std::this_thread::sleep_for(1ms);
}

ptrdiff_t times_done(const std::string& what) {
  const Words done = fake_nccl().done();
  return std::ranges::count(done, what);
}

// Returns the last two words as a set, since their order depends on the threads.
std::set<std::string> last_two(const Words& words) {
  return {words.end() - std::min<ptrdiff_t>(2, std::ssize(words)), words.end()};
}

// Returns the words from number `first` on as a set.
std::set<std::string> all_after(size_t first) {
  const Words done = fake_nccl().done();
  return {done.begin() + static_cast<ptrdiff_t>(first), done.end()};
}

}  // namespace

TEST_CASE("nccl requests: each is done before the next; gathers and reductions use two communicators") {
  Rank rank;
  for (Collective kind : {Collective::all_gather, Collective::reduce_scatter, Collective::all_gather,
                          Collective::broadcast, Collective::all_reduce}) {
    rank.start(kind);
  }
  rank.comms->close();
  CHECK(fake_nccl().done() == Words{"connect 0", "connect 1", "all_gather 0", "reduce_scatter 1",
                                    "all_gather 0", "broadcast 0", "all_reduce 1", "GPU idle", "finalize 0",
                                    "finalize 1", "destroy 0", "destroy 1"});
  CHECK(fake_nccl().violations().empty());
  CHECK_FALSE(rank.watchdog.broken());
}

TEST_CASE("nccl requests: if only one communicator is allowed, all collectives use it") {
  Rank rank(kNonBlocking, 1);
  rank.start(Collective::all_gather);
  rank.start(Collective::reduce_scatter);
  rank.comms->close();
  CHECK(fake_nccl().done() ==
        Words{"connect 0", "all_gather 0", "reduce_scatter 0", "GPU idle", "finalize 0", "destroy 0"});
  CHECK(fake_nccl().violations().empty());
}

TEST_CASE("nccl requests: several collectives that are issued together are one NCCL group") {
  Rank rank;
  const CollectiveCall gather = Rank::call_of(Collective::all_gather);
  rank.start({gather, gather, Rank::call_of(Collective::all_reduce)});
  rank.start(Collective::all_gather);
  CHECK(fake_nccl().done() == Words{"connect 0", "connect 1", "group", "all_gather 0", "all_gather 0",
                                    "all_reduce 1", "end of group", "all_gather 0"});
  CHECK(fake_nccl().violations().empty());
  rank.comms->abort();
}

TEST_CASE("nccl requests: sums of a dtype that NCCL does not have are refused before a group is open") {
  Rank rank;
  CollectiveCall odd = Rank::call_of(Collective::all_reduce);
  odd.input = odd.output = at::zeros({8}, at::kBool);
  CHECK_THROWS_AS(rank.start({odd, odd}), InternalError);
  CHECK(fake_nccl().done() == Words{"connect 0", "connect 1"});
  rank.comms->abort();
}

TEST_CASE("nccl requests: a failed request aborts both communicators, and later requests fail too") {
  Rank rank;
  fake_nccl().fail_requests(ncclUnhandledCudaError);
  const std::string error = testing::error_of<CommError>([&] { rank.start(Collective::all_gather); });
  CHECK_THAT(error,
             StartsWith("all_gather of bucket 3: NCCL failed: a failure") && Contains("NCCL_DEBUG=INFO"));
  CHECK(last_two(fake_nccl().done()) == std::set<std::string>{"abort 0", "abort 1"});
  fake_nccl().fail_requests(ncclSuccess);
  CHECK(testing::error_of<CommError>([&] { rank.start(Collective::all_gather); }) == error);
  CHECK(last_two(fake_nccl().done()) == std::set<std::string>{"abort 0", "abort 1"});
  CHECK(fake_nccl().violations().empty());
}

TEST_CASE("nccl requests: a request that NCCL never completes ends at the deadline") {
  Rank rank(kNonBlocking, 2, 100ms);
  fake_nccl().take(-1);
  const auto start = std::chrono::steady_clock::now();
  CHECK_THAT(testing::error_of<CommError>([&] { rank.start(Collective::reduce_scatter); }),
             StartsWith("reduce_scatter of bucket 3 did not end within 0.1 s"));
  const auto elapsed = std::chrono::steady_clock::now() - start;
  CHECK(elapsed >= 100ms);
  CHECK(elapsed < 10s);
  rank.watchdog.stop();
  CHECK(last_two(fake_nccl().done()) == std::set<std::string>{"abort 0", "abort 1"});
  CHECK(fake_nccl().violations().empty());
}

TEST_CASE("nccl requests: ranks that do not connect end at the deadline") {
  CHECK_THROWS_WITH(Rank(kNonBlocking, 2, 100ms, -1), StartsWith("connecting did not end within 0.1 s"));
  CHECK(fake_nccl().violations().empty());
}

TEST_CASE("nccl requests: an asynchronous error of NCCL is found while a collective runs") {
  Rank rank;
  rank.start(Collective::all_gather);
  fake_nccl().report(ncclRemoteError);
  const auto patience = std::chrono::steady_clock::now() + 10s;
  while (!rank.watchdog.broken() && std::chrono::steady_clock::now() < patience)
    std::this_thread::sleep_for(1ms);
  CHECK_THROWS_WITH(rank.watchdog.check(),
                    StartsWith("all_gather of bucket 3: NCCL failed: remote process exited"));
  rank.watchdog.stop();
  CHECK(fake_nccl().violations().empty());
}

TEST_CASE("nccl requests: memory is registered with both communicators until it is freed") {
  for (bool windows : {true, false}) {
    Rank rank;
    int first = 0;
    int second = 0;
    rank.register_memory(&first, windows);
    rank.register_memory(&second, windows);
    rank.comms->forget_memory(&first);
    rank.comms->forget_memory(&first);  // has no effect, since the memory is no longer registered
    const std::string in = windows ? "window " : "register ";
    const std::string out = windows ? "no window " : "deregister ";
    CHECK(fake_nccl().done() ==
          Words{"connect 0", "connect 1", in + "0", in + "1", in + "0", in + "1", out + "0", out + "1"});
    rank.comms->close();
    const Words done = fake_nccl().done();
    CHECK(Words(done.begin() + 8, done.begin() + 13) ==
          Words{"GPU idle", out + "0", out + "1", "finalize 0", "finalize 1"});
    rank.comms->forget_memory(&second);
    CHECK(fake_nccl().done() == done);
    CHECK(fake_nccl().violations().empty());
  }
}

TEST_CASE("nccl requests: if NCCL returns no window, memory is registered with ncclCommRegister()") {
  Rank rank;
  fake_nccl().take_windows_away();
  int memory = 0;
  rank.register_memory(&memory, true);
  rank.comms->forget_memory(&memory);
  CHECK(fake_nccl().done() == Words{"connect 0", "connect 1", "window 0", "register 0", "window 1",
                                    "register 1", "deregister 0", "deregister 1"});
  CHECK(fake_nccl().violations().empty());
  rank.comms->abort();
}

TEST_CASE("nccl requests: if a rank that hangs blocks the freeing of memory, the communicators are aborted") {
  Rank rank;
  int memory = 0;
  rank.register_memory(&memory, false);
  fake_nccl().hold("deregister");
  const auto start = std::chrono::steady_clock::now();
  rank.comms->forget_memory(&memory);
  CHECK(std::chrono::steady_clock::now() - start >= kPatience.with_memory);
  CHECK(std::chrono::steady_clock::now() - start < 10s);
  CHECK(testing::error_of<CommError>([&] { rank.start(Collective::all_gather); }) ==
        "all_gather of bucket 3: NCCL could not release memory that other ranks use: one of them is stopped");
  wait_until([] { return times_done("deregister 0") == 1; });
  CHECK(all_after(4) == std::set<std::string>{"revoke 0", "revoke 1", "deregister 0", "abort 0", "abort 1"});
  CHECK(fake_nccl().violations().empty());
}

TEST_CASE("nccl requests: an NCCL call that does not return delays neither the watchdog nor an abort") {
  NcclPatience patience = kPatience;
  patience.with_memory = 60s;
  Rank rank(kNonBlocking, 2, 300ms, 3, patience);
  std::vector<int> memory(2);
  for (int& one : memory) rank.register_memory(&one, false);
  rank.start(Collective::all_gather);
  fake_nccl().hold("deregister");
  const auto start = std::chrono::steady_clock::now();
  std::thread other([&] { rank.comms->forget_memory(&memory[0]); });
  wait_until([&] { return rank.watchdog.broken(); });
  other.join();  // returns, because the abort has ended the call in which `other` was blocked
  CHECK(std::chrono::steady_clock::now() - start < 10s);
  CHECK_THROWS_WITH(rank.watchdog.check(), StartsWith("all_gather of bucket 3 did not end within 0.3 s"));
  rank.comms->forget_memory(&memory[1]);  // makes no NCCL call after the abort
  rank.watchdog.stop();
  CHECK(times_done("abort 0") == 1);
  CHECK(times_done("deregister 0") == 1);
  CHECK(times_done("deregister 1") == 0);
}

TEST_CASE("nccl requests: a close() that waits for a rank that hangs ends in an abort") {
  for (const std::string held : {"GPU", "deregister"}) {
    Rank rank;
    int memory = 0;
    rank.register_memory(&memory, false);
    fake_nccl().hold(held);
    const auto start = std::chrono::steady_clock::now();
    rank.comms->close();
    CHECK(std::chrono::steady_clock::now() - start >= kPatience.with_close);
    CHECK(std::chrono::steady_clock::now() - start < 10s);
    wait_until([&] { return held == "GPU" || times_done("deregister 0") == 1; });
    CHECK(times_done("abort 0") == 1);
    CHECK(times_done("abort 1") == 1);
    CHECK(times_done("finalize 0") == 0);
  }
}

TEST_CASE("nccl requests: if destroying one communicator hangs, close() aborts only the other one") {
  Rank rank;
  fake_nccl().hold("destroy");
  rank.comms->close();
  CHECK(last_two(fake_nccl().done()) == std::set<std::string>{"destroy 0", "abort 1"});
  fake_nccl().let_go();
  CHECK(fake_nccl().violations().empty());
}

TEST_CASE("nccl requests: calls of threads that start collectives, free memory and watch do not overlap") {
  Rank rank;
  std::vector<int> memory(40);
  for (int& one : memory) rank.register_memory(&one, true);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) rank.start(i % 2 ? Collective::all_gather : Collective::reduce_scatter);
    });
  }
  threads.emplace_back([&] {
    for (int& one : memory) rank.comms->forget_memory(&one);
  });
  for (std::thread& thread : threads) thread.join();
  CHECK(fake_nccl().violations().empty());
  CHECK_FALSE(rank.watchdog.broken());
  rank.comms->close();
  CHECK(fake_nccl().violations().empty());
}

TEST_CASE("blocking nccl: only calls that connect ranks run in helper threads") {
  Rank rank(kBlocking);
  const CollectiveCall gather = Rank::call_of(Collective::all_gather);
  const CollectiveCall other = Rank::call_of(Collective::all_gather, 16);
  const CollectiveCall sum = Rank::call_of(Collective::reduce_scatter);
  // Each shape twice: the first collective connects the ranks for it, the second one runs in this thread.
  const std::vector<std::vector<CollectiveCall>> shapes = {{gather}, {sum}, {other}, {gather, other}};
  for (int turn = 0; turn < 2; ++turn) {
    for (const auto& calls : shapes) rank.start(calls);
  }
  const Words once = {"all_gather 0", "reduce_scatter 1", "all_gather 0", "group",
                      "all_gather 0", "all_gather 0",     "end of group"};
  Words wanted = {"connect 0", "connect 1"};
  for (int turn = 0; turn < 2; ++turn) wanted.insert(wanted.end(), once.begin(), once.end());
  REQUIRE(fake_nccl().done() == wanted);
  for (size_t i = 0; i < wanted.size(); ++i) {
    INFO(i << ": " << wanted[i]);
    CHECK(fake_nccl().done_here(i) == (i >= 2 + once.size()));
  }
  rank.comms->close();
  CHECK(fake_nccl().violations().empty());
  CHECK_FALSE(rank.watchdog.broken());
}

TEST_CASE("blocking nccl: a collective that hangs while it connects ranks ends at the deadline") {
  Rank rank(kBlocking, 2, 300ms);
  fake_nccl().hold("all_gather");
  const auto start = std::chrono::steady_clock::now();
  CHECK_THAT(testing::error_of<CommError>([&] { rank.start(Collective::all_gather); }),
             StartsWith("all_gather of bucket 3 did not end within 0.3 s"));
  CHECK(std::chrono::steady_clock::now() - start >= 300ms);
  CHECK(std::chrono::steady_clock::now() - start < 10s);
  rank.watchdog.stop();
  // Both communicators are revoked while the call runs, and aborted after it has returned.
  CHECK(all_after(3) == std::set<std::string>{"revoke 0", "revoke 1", "abort 0", "abort 1"});
  CHECK(fake_nccl().violations().empty());
}

TEST_CASE("blocking nccl: a collective that hangs in the caller's thread, as on a full stream, is revoked") {
  Rank rank(kBlocking, 2, 300ms);
  rank.start(Collective::all_gather);
  fake_nccl().hold("all_gather");
  const auto start = std::chrono::steady_clock::now();
  CHECK_THAT(testing::error_of<CommError>([&] { rank.start(Collective::all_gather); }),
             StartsWith("all_gather of bucket 3 did not end within 0.3 s"));
  CHECK(std::chrono::steady_clock::now() - start < 10s);
  CHECK(fake_nccl().done_here(3));
  rank.watchdog.stop();
  CHECK(all_after(4) == std::set<std::string>{"revoke 0", "revoke 1", "abort 0", "abort 1"});
  CHECK(fake_nccl().violations().empty());
}

TEST_CASE("blocking nccl: ranks that do not connect end at the deadline; a late communicator is aborted") {
  CHECK_THROWS_WITH(Rank(kBlocking, 2, 100ms, -1), StartsWith("connecting did not end within 0.1 s"));
  CHECK(fake_nccl().done() == Words{"connect 0"});
  fake_nccl().take(0);  // the other ranks come after all
  wait_until([] { return times_done("abort 0") == 1; });
  CHECK(fake_nccl().done() == Words{"connect 0", "abort 0"});
}

TEST_CASE("blocking nccl: a failed request aborts both communicators, and later requests fail too") {
  for (bool first : {true, false}) {
    Rank rank(kBlocking);
    if (!first) rank.start(Collective::all_gather);
    fake_nccl().fail_requests(ncclUnhandledCudaError);
    const std::string error = testing::error_of<CommError>([&] { rank.start(Collective::all_gather); });
    CHECK_THAT(error, StartsWith("all_gather of bucket 3: NCCL failed: a failure"));
    CHECK(testing::error_of<CommError>([&] { rank.start(Collective::all_gather); }) == error);
    CHECK(last_two(fake_nccl().done()) == std::set<std::string>{"abort 0", "abort 1"});
    CHECK(fake_nccl().violations().empty());
  }
}

TEST_CASE("blocking nccl: memory is not registered, because any collective could wait for other ranks then") {
  Rank rank(kBlocking);
  int memory = 0;
  CHECK_THROWS_AS(rank.register_memory(&memory, false), InternalError);
  rank.comms->close();
}

TEST_CASE("nccl memory: an allocation on a GPU that is full of LibTorch's cache frees the cache") {
  const c10::Device device(c10::kCUDA, 0);
  fake_nccl().reset();
  const auto comms = std::make_shared<NcclComms>(0, kPatience);
  fake_nccl().fill_memory(true);
  { const NcclMemory memory(device, 4096, comms); }
  CHECK(fake_nccl().done() == Words{"no memory", "free cache", "allocate", "GPU idle"});
  fake_nccl().fill_memory(false);
  CHECK_THROWS_WITH(NcclMemory(device, 4096, comms), StartsWith("GPU 0 has no 4096 bytes of memory left"));
}

TEST_CASE("nccl memory: LibTorch's cache is freed before NCCL connects ranks on a GPU that is nearly full") {
  Rank rank(kBlocking);
  fake_cuda().free_memory = size_t{100} << 20;
  for (int turn = 0; turn < 2; ++turn) rank.start(Collective::all_gather);
  CHECK(fake_nccl().done() == Words{"connect 0", "connect 1", "free cache", "all_gather 0", "all_gather 0"});
  testing::reset_fake_cuda();
  rank.start(Collective::reduce_scatter);
  CHECK(times_done("free cache") == 1);
  rank.comms->close();
}

TEST_CASE("stream probe: the watchdog's thread sets its GPU once, and breaks no capture of another thread") {
  testing::reset_fake_cuda();
  StreamProbe probe(1, std::make_shared<NcclComms>(1, kPatience));
  NcclWatchdog watchdog({.timeout = 60s, .period = 1ms}, probe, nullptr);
  fake_cuda().events_pass = false;
  const size_t slot = watchdog.take();
  fake_cuda().has_context[0] = false;  // what this thread does is of no interest
  watchdog.start();
  watchdog.begin(slot, std::vector{Rank::call_of(Collective::all_gather)}, nullptr);
  watchdog.enqueued(slot);
  wait_until([] { return fake_cuda().queries >= 10; });
  watchdog.stop();
  CHECK(fake_cuda().queries >= 10);
  CHECK(fake_cuda().mode_of_query == cudaStreamCaptureModeRelaxed);
  CHECK(fake_cuda().set_device_calls == 1);
  CHECK(fake_cuda().has_context[1]);
  CHECK_FALSE(fake_cuda().has_context[0]);
  testing::reset_fake_cuda();
}

}  // namespace zerorun
