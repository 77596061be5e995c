// Tests that processes which wait for different collectives get an error long before their deadline, over
// Gloo and over shared memory, and that processes which are only late get none.
#include "comm/gloo/order_watch.h"

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"
#include "tests/comm/transport_ranks.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using testing::check_texts;
using testing::run_connected;
using testing::sleep_ms;

constexpr int kSlow = 4000;  // ms, longer than ranks that disagree wait

std::unique_ptr<Work> sum(Communicator& communicator) {
  return communicator.all_reduce(at::ones({4}), "the gradient norm");
}

std::unique_ptr<Work> gather(Communicator& communicator, const char* label = "bucket 3") {
  return communicator.all_gather(at::empty({4 * communicator.world_size()}), at::ones({4}), label,
                                 "for layer" + std::to_string(communicator.rank()));
}

OrderWatch::Statement waiting_for(int rank, Collective kind, uint64_t number, const char* agreed,
                                  std::initializer_list<uint64_t> started, int root = 0) {
  OrderWatch::Statement statement{.rank = rank, .kind = kind, .number = number, .root = root};
  std::copy(started.begin(), started.end(), statement.started.begin());
  statement.pending = {agreed, agreed};
  return statement;
}

}  // namespace

TEST_CASE("order watch: ranks in different collectives get an error long before the deadline") {
  for (const char* transport : {"gloo", "shm"}) {
    // `odd` is the rank that waits for another collective than all others.
    for (const auto& [ranks, odd] : {std::pair(2, 1), std::pair(3, 1), std::pair(4, 0)}) {
      INFO(transport << ", " << ranks << " ranks, odd " << odd);
      const auto endings =
          run_connected({transport, ranks}, [&](auto& communicator, int rank) -> std::string {
            sum(*communicator)->wait();
            (rank == odd ? gather(*communicator) : sum(*communicator))->wait();
            return "went through";
          });
      const std::string norm = "all_reduce of the gradient norm";
      const std::string bucket = "all_gather of bucket 3 for layer" + std::to_string(odd);
      for (int rank = 0; rank < ranks; ++rank) {
        CHECK_THAT(endings[rank].text,
                   StartsWith("CommError: ranks disagree on the next collective: rank " +
                              std::to_string(rank) + " is in " + (rank == odd ? bucket : norm)) &&
                       Contains(rank == odd ? norm : "rank " + std::to_string(odd) + " in " + bucket));
        CHECK(endings[rank].seconds < 30);
      }
    }
  }
}

TEST_CASE("order watch: ranks that gather other buckets of equal size get an error before the deadline") {
  const auto endings = run_connected({"gloo", 2}, [&](auto& communicator, int rank) -> std::string {
    gather(*communicator, rank == 0 ? "bucket 3" : "bucket 4")->wait();
    return "went through";
  });
  for (const int rank : {0, 1}) {
    CHECK_THAT(endings[rank].text,
               StartsWith("CommError: ranks disagree on the next collective: rank " + std::to_string(rank)) &&
                   Contains("all_gather of bucket 3 for layer0") &&
                   Contains("all_gather of bucket 4 for layer1"));
    CHECK(endings[rank].seconds < 30);
  }
}

TEST_CASE("order watch: a rank that is late, or starts its collectives in another order, is no error") {
  for (const char* transport : {"gloo", "shm"}) {
    INFO(transport);
    check_texts(run_connected({transport, 3}, [&](auto& communicator, int rank) -> std::string {
      // Rank 0 waits for the sum, and rank 1 for the gather. Rank 2 starts both late.
      if (rank == 2) sleep_ms(kSlow);
      std::unique_ptr<Work> first = rank == 0 ? sum(*communicator) : gather(*communicator);
      std::unique_ptr<Work> second = rank == 0 ? gather(*communicator) : sum(*communicator);
      first->wait();
      second->wait();
      return "went through";
    }));
  }
}

TEST_CASE("order watch: a label of two lines is no disagreement") {
  check_texts(run_connected({"gloo", 3}, [&](auto& communicator, int rank) -> std::string {
    if (rank == 2) sleep_ms(kSlow);
    gather(*communicator, "layer\nof two lines")->wait();
    return "went through";
  }));
}

TEST_CASE("order watch: threads of a rank may wait for different collectives") {
  for (const char* transport : {"gloo", "shm"}) {
    INFO(transport);
    check_texts(run_connected({transport, 2}, [&](auto& communicator, int rank) -> std::string {
      const auto start = [&](bool sums) { return sums ? sum(*communicator) : gather(*communicator); };
      std::atomic<bool> is_known = false;
      std::thread other([&] {
        communicator->barrier("the other thread is known")->wait();
        is_known = true;
        sleep_ms(kSlow);
        start(rank == 1)->wait();
      });
      while (!is_known) sleep_ms(1);
      start(rank == 0)->wait();  // on rank 1 the other thread starts the same
      other.join();
      return "went through";
    }));
  }
}

TEST_CASE("order watch: a broadcast does not wait for ranks that are not its root") {
  check_texts(run_connected({"gloo", 3}, [&](auto& communicator, int rank) -> std::string {
    const auto start = [&] { return communicator->broadcast(at::ones({4}), 0, "a seed"); };
    if (rank == 0) sleep_ms(kSlow);
    // Rank 1 waits for the broadcast before the sum, and rank 2 for the sum before the broadcast.
    std::unique_ptr<Work> broadcast = rank < 2 ? start() : nullptr;
    if (rank == 1) broadcast->wait();
    sum(*communicator)->wait();
    if (rank == 2) broadcast = start();
    if (rank != 1) broadcast->wait();
    return "went through";
  }));
}

TEST_CASE("order watch: two ranks wait for each other if each lacks what the other has not started") {
  // `started`, by kind: reduce_scatter, all_gather, all_reduce.
  const auto gathers = waiting_for(0, Collective::all_gather, 4, "bucket 1", {0, 5, 2});
  const auto sums = waiting_for(1, Collective::all_reduce, 2, "norm", {0, 4, 3});
  CHECK(wait_for_each_other(gathers, sums));
  CHECK(wait_for_each_other(sums, gathers));

  const auto ahead =
      waiting_for(1, Collective::all_reduce, 2, "norm", {0, 5, 3});  // it has started the gather
  CHECK_FALSE(wait_for_each_other(gathers, ahead));
  CHECK_FALSE(wait_for_each_other(ahead, gathers));

  const auto same = waiting_for(1, Collective::all_gather, 4, "bucket 1", {0, 5, 2});
  const auto other_label = waiting_for(1, Collective::all_gather, 4, "bucket 2", {0, 5, 2});
  CHECK_FALSE(wait_for_each_other(gathers, same));
  CHECK(wait_for_each_other(gathers, other_label));

  const auto receives = waiting_for(0, Collective::broadcast, 0, "seed", {0, 4, 2, 1}, 2);
  const auto sends = waiting_for(0, Collective::broadcast, 0, "seed", {0, 4, 2, 1}, 0);
  CHECK_FALSE(wait_for_each_other(receives, sums));
  CHECK(wait_for_each_other(sends, sums));
}

}  // namespace zerorun
