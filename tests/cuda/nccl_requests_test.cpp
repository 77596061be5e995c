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
#include "tests/cuda/nccl_rank.h"
#include "tests/support/temporary_folder.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using namespace std::chrono_literals;
using testing::all_after;
using testing::fake_cuda;
using testing::fake_nccl;
using testing::kBlocking;
using testing::kNonBlocking;
using testing::kPatience;
using testing::last_two;
using testing::Rank;
using testing::times_done;
using testing::wait_until;
using Words = std::vector<std::string>;

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
