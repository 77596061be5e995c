// Tests ranks that are processes connected by Gloo: all collectives, deadlines, and ranks that die.
#include "comm/gloo/gloo_communicator.h"

#include <sys/wait.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "comm/connect/rendezvous.h"
#include "tests/comm/collective_script.h"
#include "tests/comm/rank_processes.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;
using testing::Ending;
using testing::run_processes;

constexpr milliseconds kAmple = std::chrono::seconds(60);

std::shared_ptr<Communicator> join(int rank, int world_size, int port, milliseconds timeout = kAmple) {
  at::set_num_threads(1);
  testing::set_rank_variables(rank, world_size, port, timeout);
  setenv("ZERORUN_COMM", "gloo", 1);
  return connect();
}

void wait_for(Collective kind, Communicator& communicator, int root) {
  at::Tensor part = at::ones({4});
  at::Tensor whole = at::ones({4 * communicator.world_size()});
  switch (kind) {
    case Collective::reduce_scatter:
      return communicator.reduce_scatter(part, whole, "bucket 3")->wait();
    case Collective::all_gather:
      return communicator.all_gather(whole, part, "bucket 3")->wait();
    case Collective::all_reduce:
      return communicator.all_reduce(part, "bucket 3")->wait();
    case Collective::broadcast:
      return communicator.broadcast(part, root, "bucket 3")->wait();
    case Collective::barrier:
      return communicator.barrier("bucket 3")->wait();
  }
}

[[noreturn]] void stay_away() {
  for (;;) pause();
}

void sleep_ms(int duration) {
  std::this_thread::sleep_for(milliseconds(duration));
}

}  // namespace

TEST_CASE("gloo: every collective, 2 to 4 processes, bits of a sum in rank order") {
  for (int world_size = 2; world_size <= 4; ++world_size) {
    const int port = testing::free_port();
    const auto endings = run_processes(
        world_size, [&](int rank) { return testing::run_collective_script(*join(rank, world_size, port)); });
    for (const Ending& ending : endings) CHECK(ending.text == testing::script_success(world_size));
  }
}

TEST_CASE("gloo: ranks may wait in different orders") {
  const int port = testing::free_port();
  const auto endings = run_processes(3, [&](int rank) {
    auto communicator = join(rank, 3, port);
    at::Tensor first = at::full({4}, 1);
    at::Tensor second = at::full({4}, 10);
    auto work1 = communicator->all_reduce(first, "first");
    auto work2 = communicator->all_reduce(second, "second");
    (rank == 1 ? work2 : work1)->wait();
    (rank == 1 ? work1 : work2)->wait();
    return std::to_string((first.sum() + second.sum()).item<double>());
  });
  for (const Ending& ending : endings) CHECK(ending.text == "132.000000");
}

TEST_CASE("gloo: a late rank is waited for") {
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) {
    auto communicator = join(rank, 2, port);
    if (rank == 1) sleep_ms(700);
    at::Tensor tensor = at::full({2}, rank + 1);
    communicator->all_reduce(tensor, "norm")->wait();
    return std::to_string(tensor.sum().item<double>());
  });
  for (const Ending& ending : endings) CHECK(ending.text == "6.000000");
}

TEST_CASE("gloo: receive buffers are counted and used again") {
  const int port = testing::free_port();
  const auto endings = run_processes(3, [&](int rank) {
    auto communicator = join(rank, 3, port);
    for (int round = 0; round < 5; ++round) {
      communicator->reduce_scatter(at::empty({100}), at::ones({300}), "bucket")->wait();
    }
    return std::to_string(communicator->scratch_bytes());
  });
  for (const Ending& ending : endings) CHECK(ending.text == "800");  // two peers, 100 float32 each
}

TEST_CASE("gloo: ranks that never come are named with the collective and its label, at the deadline") {
  constexpr milliseconds kTimeout(2000);
  struct Expected {
    Collective kind;
    int root;
    std::string ranks;
  };
  const Expected cases[] = {
      {Collective::reduce_scatter, 0, "ranks 1, 2"}, {Collective::all_gather, 0, "ranks 1, 2"},
      {Collective::all_reduce, 0, "ranks 1, 2"},     {Collective::broadcast, 1, "rank 1"},
      {Collective::broadcast, 0, "ranks 1, 2"},      {Collective::barrier, 0, "ranks 1, 2"}};
  for (const Expected& expected : cases) {
    const int port = testing::free_port();
    const auto endings = run_processes(
        3,
        [&](int rank) -> std::string {
          auto communicator = join(rank, 3, port, kTimeout);
          if (rank != 0) stay_away();
          wait_for(expected.kind, *communicator, expected.root);
          return "went through";
        },
        1);
    const std::string what = std::string("CommError: ") + name_of(expected.kind) + " of bucket 3: ";
    CHECK(endings[0].text ==
          what + expected.ranks + " did not take part within 2 s (the limit set by --timeout)");
    CHECK(endings[0].seconds >= 2);
    CHECK(endings[0].seconds < 12);
  }
}

TEST_CASE("gloo: of several ranks only the absent one is named") {
  const int port = testing::free_port();
  const auto endings = run_processes(
      4,
      [&](int index) -> std::string {
        const int rank = (index + 3) % 4;  // process 3 is rank 2
        auto communicator = join(rank, 4, port, milliseconds(2000));
        if (rank == 2) stay_away();
        try {
          communicator->reduce_scatter(at::empty({5}), at::ones({20}), "bucket 3")->wait();
        } catch (const CommError&) {
          // Each rank stays until all have failed. If it ended at once, the others would name it as missing
          // too.
          sleep_ms(500);
          throw;
        }
        return "went through";
      },
      3);
  for (int index = 0; index < 3; ++index) {
    CHECK(endings[index].text ==
          "CommError: reduce_scatter of bucket 3: rank 2 did not take part within 2 s (the limit set by "
          "--timeout)");
  }
}

TEST_CASE("gloo: collectives that nobody waited for do not block later ones") {
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) -> std::string {
    auto communicator = join(rank, 2, port, milliseconds(5000));
    for (int64_t numel : {4, 4000, 400'000}) {
      for (int i = 0; i < 3; ++i) {
        auto dropped = communicator->all_gather(at::empty({2 * numel}), at::ones({numel}), "dropped");
      }
      at::Tensor sum = at::full({1}, rank + 1.0F);
      communicator->all_reduce(sum, "kept")->wait();
      if (sum.item<float>() != 3) return "a wrong sum";
    }
    return "went through";
  });
  for (const Ending& ending : endings) CHECK(ending.text == "went through");
}

TEST_CASE("gloo: ranks that gather buckets of equal size in another order get an error, not wrong data") {
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) -> std::string {
    auto communicator = join(rank, 2, port, milliseconds(1500));
    const std::string label = rank == 0 ? "bucket 3" : "bucket 4";
    communicator
        ->all_gather(at::empty({8}), at::ones({4}), label, "for aten::addmm on layer" + std::to_string(rank))
        ->wait();
    return "went through";
  });
  for (int rank : {0, 1}) {
    CHECK_THAT(endings[rank].text,
               StartsWith("CommError: ranks disagree on the next collective: rank " + std::to_string(rank)) &&
                   Contains("all_gather of bucket 3 for aten::addmm on layer0") &&
                   Contains("all_gather of bucket 4 for aten::addmm on layer1"));
    CHECK(endings[rank].seconds < 12);
  }
}

TEST_CASE("gloo: a process killed while the others wait for it is named at once") {
  const int port = testing::free_port();
  const auto endings = run_processes(3, [&](int rank) -> std::string {
    auto communicator = join(rank, 3, port);
    if (rank == 2) {
      sleep_ms(700);
      raise(SIGKILL);
    }
    try {
      communicator->reduce_scatter(at::empty({5}), at::ones({15}), "bucket 3")->wait();
    } catch (const CommError&) {
      sleep_ms(500);
      throw;
    }
    return "went through";
  });
  CHECK(WIFSIGNALED(endings[2].status));
  for (int rank : {0, 1}) {
    CHECK_THAT(endings[rank].text,
               StartsWith("CommError: reduce_scatter of bucket 3: lost the connection to rank 2, "));
    CHECK(endings[rank].seconds < 15);
  }
}

TEST_CASE("gloo: a process killed before the others start the collective is named at once") {
  const int port = testing::free_port();
  const auto endings = run_processes(2, [&](int rank) -> std::string {
    auto communicator = join(rank, 2, port);
    communicator->barrier("the start")->wait();  // otherwise rank 1 may end while rank 0 is still connecting
    if (rank == 1) raise(SIGKILL);
    sleep_ms(700);
    communicator->reduce_scatter(at::empty({5}), at::ones({10}), "bucket 3")->wait();
    return "went through";
  });
  CHECK_THAT(endings[0].text,
             StartsWith("CommError: ") && Contains("reduce_scatter of bucket 3") && Contains("rank 1"));
  CHECK(endings[0].seconds < 15);
}

TEST_CASE("gloo: if a signal has stopped rank 0, which keeps the store, it is named at the deadline") {
  const int port = testing::free_port();
  const auto endings = run_processes(
      2,
      [&](int index) -> std::string {
        const int rank = 1 - index;  // process 0 is rank 1; run_processes() waits for process 0 only
        auto communicator = join(rank, 2, port, milliseconds(2000));
        communicator->barrier("the start")->wait();
        if (rank == 0) raise(SIGSTOP);
        communicator->all_reduce(at::ones({5}), "norm")->wait();
        return "went through";
      },
      1);
  CHECK_THAT(endings[0].text,
             StartsWith("CommError: all_reduce of norm: rank 0 did not take part within 2 s"));
  CHECK(endings[0].seconds < 15);
}

TEST_CASE("gloo: a rank that is merely late is not blamed for one that was killed") {
  const int port = testing::free_port();
  const auto endings = run_processes(3, [&](int rank) -> std::string {
    auto communicator = join(rank, 3, port);
    communicator->barrier("the start")->wait();
    if (rank == 1) {
      sleep_ms(500);
      raise(SIGKILL);
    }
    if (rank == 2) sleep_ms(3000);
    communicator->all_reduce(at::ones({5}), "norm")->wait();
    return "went through";
  });
  CHECK_THAT(endings[0].text, StartsWith("CommError: all_reduce of norm: lost the connection to rank 1, "));
}

}  // namespace zerorun
