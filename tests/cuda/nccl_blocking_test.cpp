// Tests the use of blocking communicators of NCCL with a fake NCCL, which records forbidden calls: see
// nccl_requests_test.cpp.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/cuda/fake_nccl.h"
#include "tests/cuda/nccl_rank.h"
#include "tests/support/temporary_folder.h"

namespace zerorun {
namespace {

using Catch::Matchers::StartsWith;
using namespace std::chrono_literals;
using testing::all_after;
using testing::fake_nccl;
using testing::kBlocking;
using testing::last_two;
using testing::Rank;
using testing::times_done;
using testing::wait_until;
using Words = std::vector<std::string>;

}  // namespace

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

}  // namespace zerorun
