// Tests ranks that are threads of one process: all collectives, deadlines, and ranks that disagree.
#include "comm/thread_communicator.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "tests/comm/collective_script.h"
#include "tests/support/rank_threads.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Returns for each rank the message of the CommError that its body threw, or "". Other exceptions fail the
// test.
std::vector<std::string> errors_of_ranks(int world_size, milliseconds timeout,
                                         const testing::RankBody& body) {
  std::vector<std::string> errors(world_size);
  testing::run_ranks(
      world_size,
      [&](std::shared_ptr<Communicator> communicator) {
        try {
          body(communicator);
        } catch (const CommError& error) {
          errors[communicator->rank()] = error.what();
        }
      },
      timeout);
  return errors;
}

}  // namespace

TEST_CASE("threads: every collective, 1 to 5 ranks, bits of a sum in rank order") {
  for (int world_size = 1; world_size <= 5; ++world_size) {
    std::vector<std::string> results(world_size);
    testing::run_ranks(world_size, [&](std::shared_ptr<Communicator> communicator) {
      results[communicator->rank()] = testing::run_collective_script(*communicator);
    });
    for (const std::string& result : results) CHECK(result == testing::script_success(world_size));
  }
}

TEST_CASE("threads: a barrier releases no rank before all ranks have reached it") {
  std::atomic<int> arrived{0};
  std::atomic<bool> early{false};
  testing::run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      communicator->barrier("round")->wait();
      if (arrived < 3 * round) early = true;
      communicator->barrier("next round")->wait();
    }
  });
  CHECK_FALSE(early);
}

TEST_CASE("threads: ranks that never come are named with the collective and its label, at the deadline") {
  constexpr milliseconds kTimeout(300);
  const auto start = Clock::now();
  const auto errors = errors_of_ranks(4, kTimeout, [](std::shared_ptr<Communicator> communicator) {
    if (communicator->rank() == 1 || communicator->rank() == 3) return;
    at::Tensor whole = at::ones({8});
    communicator->reduce_scatter(at::empty({2}), whole, "bucket 3")->wait();
  });
  const auto elapsed = Clock::now() - start;
  CHECK(elapsed >= kTimeout);
  CHECK(elapsed < kTimeout + std::chrono::seconds(5));
  for (int rank : {0, 2}) {
    CHECK_THAT(errors[rank], Contains("reduce_scatter of bucket 3") && Contains("ranks 1, 3") &&
                                 Contains("0.3 s") && Contains("--timeout"));
  }
}

TEST_CASE("threads: ranks may wait for their collectives in different orders") {
  std::vector<float> sums(3);
  const auto errors = errors_of_ranks(3, milliseconds(5000), [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    at::Tensor first = at::zeros({6});
    at::Tensor second = at::zeros({6});
    auto gather_first = communicator->all_gather(first, at::full({2}, rank + 1.0F), "first");
    auto gather_second = communicator->all_gather(second, at::full({2}, 10.0F * rank), "second");
    if (rank == 1) gather_second->wait();
    gather_first->wait();
    if (rank != 1) gather_second->wait();
    sums[rank] = (first.sum() + second.sum()).item<float>();
  });
  CHECK(errors == std::vector<std::string>(3));
  CHECK(sums == std::vector<float>(3, 2 * (1 + 2 + 3) + 2 * (0 + 10 + 20)));
}

TEST_CASE("threads: ranks whose next collectives differ get an error") {
  SECTION("another collective") {
    const auto errors = errors_of_ranks(2, milliseconds(500), [](std::shared_ptr<Communicator> communicator) {
      at::Tensor whole = at::ones({8});
      at::Tensor part = at::ones({4});
      if (communicator->rank() == 0) {
        communicator->reduce_scatter(part, whole, "bucket 3")->wait();
      } else {
        communicator->all_gather(whole, part, "bucket 4")->wait();
      }
    });
    for (const std::string& error : errors) {
      CHECK_THAT(error, Contains("disagree") && Contains("reduce_scatter of bucket 3") &&
                            Contains("all_gather of bucket 4") && Contains("rank 0") && Contains("rank 1"));
    }
  }
  SECTION("another size") {
    const auto errors =
        errors_of_ranks(3, milliseconds(5000), [](std::shared_ptr<Communicator> communicator) {
          communicator->all_reduce(at::ones({communicator->rank() == 2 ? 5 : 4}), "norm")->wait();
        });
    CHECK_THAT(errors[0], Contains("rank 0 is in all_reduce of norm (4 elements)") &&
                              Contains("rank 2 in all_reduce of norm (5 elements)"));
    CHECK_THAT(errors[2], Contains("rank 2 is in all_reduce of norm (5 elements)") && Contains("rank 0"));
  }
}

TEST_CASE("threads: allocated memory is zero and aligned to 64 bytes") {
  auto communicator = make_thread_communicators(1).front();
  for (int64_t numel : {1, 3, 17, 1000, 100'000}) {
    at::Tensor tensor = communicator->allocate(numel, at::kFloat);
    CHECK(tensor.numel() == numel);
    CHECK(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64 == 0);
    CHECK(tensor.abs().sum().item<float>() == 0);
  }
}

TEST_CASE("communicators refuse sizes that do not fit") {
  auto communicator = make_thread_communicators(2).front();
  CHECK_THROWS_AS(communicator->reduce_scatter(at::empty({3}), at::empty({8}), "x"), InternalError);
  CHECK_THROWS_AS(communicator->all_gather(at::empty({8}), at::empty({3}), "x"), InternalError);
  CHECK_THROWS_AS(communicator->all_reduce(at::empty({4, 4}).t().narrow(0, 0, 2), "x"), InternalError);
}

}  // namespace zerorun
