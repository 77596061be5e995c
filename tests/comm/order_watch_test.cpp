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
using testing::connected_job;
using testing::run_connected;
using testing::run_jobs;
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

std::string be_late(std::shared_ptr<Communicator>& communicator, int rank) {
  // Rank 0 waits for the sum, and rank 1 for the gather. Rank 2 starts both late.
  if (rank == 2) sleep_ms(kSlow);
  std::unique_ptr<Work> first = rank == 0 ? sum(*communicator) : gather(*communicator);
  std::unique_ptr<Work> second = rank == 0 ? gather(*communicator) : sum(*communicator);
  first->wait();
  second->wait();
  return "went through";
}

std::string use_two_lines(std::shared_ptr<Communicator>& communicator, int rank) {
  if (rank == 2) sleep_ms(kSlow);
  gather(*communicator, "layer\nof two lines")->wait();
  return "went through";
}

std::string use_two_threads(std::shared_ptr<Communicator>& communicator, int rank) {
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
}

std::string broadcast_late(std::shared_ptr<Communicator>& communicator, int rank) {
  const auto start = [&] { return communicator->broadcast(at::ones({4}), 0, "a seed"); };
  if (rank == 0) sleep_ms(kSlow);
  // Rank 1 waits for the broadcast before the sum, and rank 2 for the sum before the broadcast.
  std::unique_ptr<Work> broadcast = rank < 2 ? start() : nullptr;
  if (rank == 1) broadcast->wait();
  sum(*communicator)->wait();
  if (rank == 2) broadcast = start();
  if (rank != 1) broadcast->wait();
  return "went through";
}

}  // namespace

TEST_CASE("order watch: ranks in different collectives get an error long before the deadline") {
  struct Case {
    const char* transport;
    int ranks;
    int odd;  // the rank that waits for another collective than all others
  };
  const Case cases[] = {{"gloo", 2, 1}, {"gloo", 3, 1}, {"gloo", 4, 0},
                        {"shm", 2, 1},  {"shm", 3, 1},  {"shm", 4, 0}};
  std::vector<testing::ProcessJob> jobs;
  for (const Case& test : cases) {
    jobs.push_back(connected_job({test.transport, test.ranks},
                                 [odd = test.odd](auto& communicator, int rank) -> std::string {
                                   sum(*communicator)->wait();
                                   (rank == odd ? gather(*communicator) : sum(*communicator))->wait();
                                   return "went through";
                                 }));
  }
  const auto endings = run_jobs(jobs);
  for (size_t index = 0; index < std::size(cases); ++index) {
    const auto& [transport, ranks, odd] = cases[index];
    INFO(transport << ", " << ranks << " ranks, odd " << odd);
    const std::string norm = "all_reduce of the gradient norm";
    const std::string bucket = "all_gather of bucket 3 for layer" + std::to_string(odd);
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK_THAT(endings[index][rank].text,
                 StartsWith("CommError: ranks disagree on the next collective: rank " + std::to_string(rank) +
                            " is in " + (rank == odd ? bucket : norm)) &&
                     Contains(rank == odd ? norm : "rank " + std::to_string(odd) + " in " + bucket));
      CHECK(endings[index][rank].seconds < 30);
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

TEST_CASE("order watch: ranks that are late, or start their collectives in another order, are no error") {
  struct Case {
    const char* what;
    testing::ConnectedRanks ranks;
    testing::ConnectedBody body;
  };
  const Case cases[] = {{"a rank that is late, and another order", {"gloo", 3}, be_late},
                        {"a rank that is late, and another order", {"shm", 3}, be_late},
                        {"a label of two lines", {"gloo", 3}, use_two_lines},
                        {"threads of a rank wait for different collectives", {"gloo", 2}, use_two_threads},
                        {"threads of a rank wait for different collectives", {"shm", 2}, use_two_threads},
                        {"a broadcast waits for its root only", {"gloo", 3}, broadcast_late}};
  std::vector<testing::ProcessJob> jobs;
  for (const Case& test : cases) jobs.push_back(connected_job(test.ranks, test.body));
  const auto endings = run_jobs(jobs);
  for (size_t index = 0; index < std::size(cases); ++index) {
    INFO(cases[index].what << ", " << cases[index].ranks.transport);
    check_texts(endings[index]);
  }
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
