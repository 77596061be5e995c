// Tests what every transport between processes does, Gloo and shared memory: all collectives, deadlines, and
// ranks that are late, stopped or killed. The error names the ranks that are missing, and no others.
#include <sys/wait.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "base/error.h"
#include "tests/comm/collective_script.h"
#include "tests/comm/transport_ranks.h"

namespace zerorun {
namespace {

using Catch::Matchers::StartsWith;
using testing::check_texts;
using testing::Ending;
using testing::run_connected;
using testing::ScriptMemory;
using testing::sleep_ms;
using testing::stay_away;

struct Transport {
  std::string name;
  std::vector<ScriptMemory> memories;  // allocate() of Gloo's communicator is at::empty()
  std::string lost[2];                 // around the number of a rank that has ended

  std::string lost_rank(int rank) const { return lost[0] + std::to_string(rank) + lost[1]; }
};

const Transport kTransports[] = {{"gloo", {ScriptMemory::own}, {"lost the connection to rank ", ", "}},
                                 {"shm",
                                  {ScriptMemory::own, ScriptMemory::communicators, ScriptMemory::both},
                                  {"rank ", " has ended (process "}}};

// Calls `test` for each transport.
void for_each_transport(const std::function<void(const Transport& transport)>& test) {
  for (const Transport& transport : kTransports) {
    INFO(transport.name);
    test(transport);
  }
}

// Runs `body` over each transport at the same time, and checks the endings one after the other.
void run_over_each(
    const testing::ConnectedRanks& ranks, const testing::ConnectedBody& body,
    const std::function<void(const Transport& transport, const std::vector<Ending>& endings)>& check) {
  const auto both = testing::run_over_both(ranks, body);
  for (size_t index = 0; index < std::size(kTransports); ++index) {
    INFO(kTransports[index].name);
    REQUIRE(both[index].transport == kTransports[index].name);
    check(kTransports[index], both[index].endings);
  }
}

void wait_for(Collective kind, Communicator& communicator, int root = 0) {
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

// Waits for a reduce-scatter, and stays a while after it has failed. A rank that ended at once would be
// missing too, and would be named by ranks whose error comes later.
std::string reduce(Communicator& communicator) {
  try {
    wait_for(Collective::reduce_scatter, communicator);
  } catch (const CommError&) {
    sleep_ms(500);
    throw;
  }
  return "went through";
}

}  // namespace

TEST_CASE("transports: every collective, 2 to 5 processes, bits of a sum in rank order") {
  for_each_transport([](const Transport& transport) {
    for (int count = 2; count <= 5; ++count) {
      for (const ScriptMemory memory : transport.memories) {
        check_texts(run_connected({transport.name, count},
                                  [&](auto& communicator, int) {
                                    return testing::run_collective_script(*communicator, memory);
                                  }),
                    testing::script_success(count));
      }
    }
  });
}

TEST_CASE("transports: ranks may be late, and wait in different orders") {
  const auto sums = [](auto& communicator, int rank) {
    if (rank == 2) sleep_ms(700);
    at::Tensor first = at::full({4}, 1);
    at::Tensor second = at::full({4}, 10 * rank);
    auto work1 = communicator->all_reduce(first, "first");
    auto work2 = communicator->all_reduce(second, "second");
    (rank == 1 ? work2 : work1)->wait();
    (rank == 1 ? work1 : work2)->wait();
    return std::to_string((first.sum() + second.sum()).template item<double>());
  };
  run_over_each({.count = 3}, sums,
                [](const Transport&, const auto& endings) { check_texts(endings, "132.000000"); });
}

TEST_CASE("transports: collectives that nobody waited for do not block later ones") {
  for_each_transport([](const Transport& transport) {
    const auto endings = run_connected(
        {transport.name, 2, std::chrono::seconds(5)}, [](auto& communicator, int rank) -> std::string {
          for (int64_t numel : {4, 4000, 400'000}) {
            for (int i = 0; i < 3; ++i) {
              auto dropped = communicator->all_gather(at::empty({2 * numel}),
                                                      communicator->allocate(numel, at::kFloat), "dropped");
            }
            at::Tensor sum = at::full({1}, rank + 1.0F);
            communicator->all_reduce(sum, "kept")->wait();
            if (sum.item<float>() != 3) return "a wrong sum";
          }
          return "went through";
        });
    check_texts(endings);
  });
}

TEST_CASE("transports: receive buffers are counted and used again") {
  for_each_transport([](const Transport& transport) {
    const auto endings = run_connected({transport.name, 3}, [](auto& communicator, int) {
      for (int round = 0; round < 5; ++round) {
        communicator->reduce_scatter(at::empty({100}), at::ones({300}), "bucket")->wait();
        communicator->barrier("until all have read")->wait();
      }
      return std::to_string(communicator->scratch_bytes());
    });
    for (const Ending& ending : endings) {
      const int bytes = std::stoi(ending.text);
      if (transport.name == "gloo") {
        CHECK(bytes == 800);  // two peers, 100 float32 each
      } else {
        CHECK((bytes == 1200 || bytes == 2400));  // copies of the input, 300 float32 each
      }
    }
  });
}

TEST_CASE("transports: ranks that never come are named with the collective and its label, at the deadline") {
  constexpr std::chrono::seconds kTimeout(15);  // includes the time to connect, on a busy machine
  struct Row {
    Collective kind;
    int root;
    std::string missing;
  };
  const Row rows[] = {
      {Collective::reduce_scatter, 0, "ranks 1, 2"}, {Collective::all_gather, 0, "ranks 1, 2"},
      {Collective::all_reduce, 0, "ranks 1, 2"},     {Collective::broadcast, 1, "rank 1"},
      {Collective::broadcast, 0, "ranks 1, 2"},      {Collective::barrier, 0, "ranks 1, 2"}};
  std::vector<testing::ProcessJob> jobs;  // all wait for their deadlines at the same time
  for (const Transport& transport : kTransports) {
    const testing::ConnectedRanks ranks{
        .transport = transport.name, .count = 3, .timeout = kTimeout, .awaited = 1};
    for (const Row& row : rows) {
      jobs.push_back(testing::connected_job(ranks, [&row](auto& communicator, int rank) {
        if (rank != 0) stay_away();
        wait_for(row.kind, *communicator, row.root);
        return "went through";
      }));
    }
  }
  const auto endings = testing::run_jobs(jobs);
  for (size_t index = 0; index < jobs.size(); ++index) {
    const std::string& transport = kTransports[index / std::size(rows)].name;
    const Row& row = rows[index % std::size(rows)];
    INFO(transport);
    // Over shared memory a broadcast waits for all ranks, over Gloo only for its root.
    const std::string missing = transport == "shm" ? "ranks 1, 2" : row.missing;
    const Ending& waiting = endings[index][0];
    CHECK(waiting.text == std::string("CommError: ") + name_of(row.kind) + " of bucket 3: " + missing +
                              " did not take part within 15 s (the limit set by --timeout)");
    CHECK(waiting.seconds >= 15);
    CHECK(waiting.seconds < 35);
  }
}

TEST_CASE("transports: of several ranks only the absent one is named") {
  const testing::ConnectedRanks ranks{
      .count = 4, .timeout = std::chrono::seconds(5), .first_rank = 3, .awaited = 3};
  const auto one_is_absent = [](auto& communicator, int rank) {
    if (rank == 2) stay_away();
    return reduce(*communicator);
  };
  run_over_each(ranks, one_is_absent, [](const Transport&, const auto& endings) {
    for (int index = 0; index < 3; ++index) {
      CHECK(endings[index].text ==
            "CommError: reduce_scatter of bucket 3: rank 2 did not take part within 5 s (the limit set by "
            "--timeout)");
    }
  });
}

TEST_CASE(
    "transports: a rank that a signal has stopped is named at the deadline, also if it keeps the store") {
  std::vector<testing::ProcessJob> jobs;
  for (const auto& [transport, count] : {std::pair("gloo", 2), std::pair("shm", 3)}) {
    const testing::ConnectedRanks ranks{transport, count, std::chrono::seconds(5), /*first_rank=*/1,
                                        /*awaited=*/count - 1};
    jobs.push_back(testing::connected_job(ranks, [](auto& communicator, int rank) {
      communicator->barrier("the start")->wait();
      if (rank == 0) raise(SIGSTOP);
      wait_for(Collective::all_reduce, *communicator);
      return "went through";
    }));
  }
  for (const auto& endings : testing::run_jobs(jobs)) {
    for (size_t index = 0; index + 1 < endings.size(); ++index) {
      CHECK_THAT(endings[index].text,
                 StartsWith("CommError: all_reduce of bucket 3: rank 0 did not take part within 5 s"));
    }
  }
}

// In the following tests the deadline is 60 s. An error with another text than the deadline's came before it.

TEST_CASE("transports: a process killed while the others wait for it is named at once") {
  const auto one_is_killed = [](auto& communicator, int rank) {
    communicator->barrier("the start")->wait();
    if (rank == 2) {
      sleep_ms(700);
      raise(SIGKILL);
    }
    return reduce(*communicator);
  };
  run_over_each({.count = 3}, one_is_killed, [](const Transport& transport, const auto& endings) {
    CHECK(WIFSIGNALED(endings[2].status));
    for (int index : {0, 1}) {
      CHECK_THAT(endings[index].text,
                 StartsWith("CommError: reduce_scatter of bucket 3: " + transport.lost_rank(2)));
      CHECK(endings[index].seconds - endings[2].seconds < 5);  // reduce() stays for half a second
    }
  });
}

TEST_CASE("transports: a process killed before the others start the collective is named at once") {
  const auto one_is_killed = [](auto& communicator, int rank) {
    communicator->barrier("the start")->wait();  // otherwise it may end while the other is connecting
    if (rank == 1) raise(SIGKILL);
    sleep_ms(700);
    return reduce(*communicator);
  };
  run_over_each({.count = 2}, one_is_killed, [](const Transport& transport, const auto& endings) {
    CHECK_THAT(endings[0].text, StartsWith("CommError: ") &&
                                    Catch::Contains("reduce_scatter of bucket 3: ") &&
                                    Catch::Contains("rank 1"));
    if (transport.name == "shm") CHECK_THAT(endings[0].text, Catch::Contains(transport.lost_rank(1)));
  });
}

TEST_CASE("transports: a rank that is merely late is not blamed for one that was killed") {
  const auto one_is_late = [](auto& communicator, int rank) {
    communicator->barrier("the start")->wait();
    if (rank == 1) {
      sleep_ms(500);
      raise(SIGKILL);
    }
    if (rank == 2) sleep_ms(3000);
    wait_for(Collective::all_reduce, *communicator);
    return "went through";
  };
  run_over_each({.count = 3}, one_is_late, [](const Transport& transport, const auto& endings) {
    for (int rank : {0, 2}) {
      if (rank == 2 && transport.name == "gloo") continue;  // it may lose the connection to rank 0 first
      CHECK_THAT(endings[rank].text,
                 StartsWith("CommError: all_reduce of bucket 3: " + transport.lost_rank(1)));
    }
  });
}

}  // namespace zerorun
