// Tests ranks that are processes on two levels: shared memory on each host, Gloo between hosts. The hosts are
// those of the launcher's variables, all on this machine.
#include <sys/wait.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "base/error.h"
#include "comm/clock_offset.h"
#include "comm/mesh.h"
#include "comm/notices.h"
#include "tests/comm/collective_script.h"
#include "tests/comm/transport_ranks.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using testing::check_texts;
using testing::ConnectedRanks;
using testing::run_connected;
using testing::ScriptMemory;
using testing::sleep_ms;

ConnectedRanks on_hosts(int hosts, int per_host,
                        std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  return {.transport = "two-level", .count = hosts * per_host, .timeout = timeout, .per_host = per_host};
}

void sum_bucket(Communicator& communicator) {
  communicator.reduce_scatter(at::ones({4}), at::ones({4 * communicator.world_size()}), "bucket 3")->wait();
}

}  // namespace

TEST_CASE("two levels in processes: every collective, with sums over the ranks of each host first") {
  struct Row {
    int hosts, per_host;
  };
  for (const Row& row : {Row{2, 2}, Row{2, 3}, Row{3, 2}}) {
    for (const ScriptMemory memory : {ScriptMemory::own, ScriptMemory::both}) {
      CAPTURE(row.hosts, row.per_host);
      check_texts(run_connected(on_hosts(row.hosts, row.per_host),
                                [&](auto& communicator, int) {
                                  return testing::run_collective_script(*communicator, memory, row.per_host);
                                }),
                  testing::script_success(row.hosts * row.per_host));
    }
  }
}

TEST_CASE("two levels in processes: Gloo and shared memory have the same bits with the same group of sums") {
  for (const char* transport : {"gloo", "shm"}) {
    CAPTURE(transport);
    check_texts(run_connected({transport, 4},
                              [](auto& communicator, int) {
                                communicator->set_sum_group(2);
                                return testing::run_collective_script(*communicator, ScriptMemory::both, 2);
                              }),
                testing::script_success(4));
  }
}

TEST_CASE("two levels in processes: ranks wait in different orders, of kinds, of one kind, and in groups") {
  const auto rounds = [](auto& world, int rank) -> std::string {
    const Mesh mesh(world, {.data = 4, .tensor = 2});
    Communicator& data = mesh.data();
    Communicator& tensor = mesh.along(MeshAxis::tensor);
    const int place = rank % 4;
    const bool first = place == 0 || place == 3;
    constexpr int64_t kNumel = 3000;
    for (int round = 0; round < 10; ++round) {
      // Two groups: 0 needs 2, which waits for 3, which needs 1, which waits for 0.
      at::Tensor gathered = at::empty({4 * kNumel});
      auto gather = data.all_gather(gathered, at::full({kNumel}, static_cast<float>(rank)), "groups");
      at::Tensor sum = at::ones({4});
      if (first) gather->wait();
      tensor.all_reduce(sum, "tensor")->wait();
      if (!first) gather->wait();
      if (gathered[kNumel].template item<float>() != static_cast<float>(rank % 2 + 2))
        return "a wrong gather";

      // Two kinds, in opposite orders.
      at::Tensor all = at::empty({8 * kNumel}), part = at::empty({kNumel});
      const auto start_gather = [&] { return world->all_gather(all, at::ones({kNumel}), "kinds"); };
      const auto start_sum = [&] { return world->reduce_scatter(part, at::ones({8 * kNumel}), "kinds"); };
      if (first) {
        auto one = start_gather();
        auto other = start_sum();
        one->wait();
        other->wait();
      } else {
        start_sum()->wait();
        start_gather()->wait();
      }
      if (part.sum().template item<float>() != 8.0F * kNumel) return "a wrong sum";

      // One kind: what one rank waits for before it starts the next, another waits for after that.
      auto earlier = world->all_gather(all, at::ones({kNumel}), "earlier");
      at::Tensor later = at::empty({8 * kNumel});
      const auto wait_for_later = [&] { world->all_gather(later, at::ones({kNumel}), "later")->wait(); };
      if (first) earlier->wait();
      wait_for_later();
      if (!first) earlier->wait();

      auto dropped = world->all_gather(at::empty({8 * kNumel}), at::ones({kNumel}), "dropped");
    }
    return "went through";
  };
  check_texts(run_connected(on_hosts(2, 4), rounds));
}

TEST_CASE("two levels in processes: meshes, notices, clocks, and messages between hosts") {
  check_texts(run_connected(on_hosts(2, 2), [](auto& world, int rank) -> std::string {
    const Mesh mesh(world, {.data = 2, .tensor = 2});
    at::Tensor of_data = at::full({6}, 1.0F + static_cast<float>(rank));
    at::Tensor of_tensor = of_data.clone();
    mesh.data().all_reduce(of_data, "data")->wait();
    mesh.along(MeshAxis::tensor).all_reduce(of_tensor, "tensor")->wait();
    if (of_data[0].template item<float>() != static_cast<float>(rank % 2 == 0 ? 1 + 3 : 2 + 4))
      return "a wrong sum of data ranks";
    if (of_tensor[0].template item<float>() != static_cast<float>(rank < 2 ? 1 + 2 : 3 + 4))
      return "a wrong sum of tensor ranks";
    const auto notices = world->open_notices();
    const Deadline deadline(world->timeout());
    notices->post("from " + std::to_string(rank), "here", deadline);
    if (notices->await("from " + std::to_string((rank + 1) % 4), deadline) != "here") return "no notice";
    if (measure_clock_offset(*world, "host " + std::to_string(rank / 2)).round_trip_ns < 0) return "no clock";
    at::Tensor received = at::empty({2});
    auto receipt = world->receive(received, rank ^ 2, "values");
    world->send(at::full({2}, static_cast<float>(rank)), rank ^ 2, "values")->wait();
    receipt->wait();
    return received[1].template item<float>() == static_cast<float>(rank ^ 2) ? "went through"
                                                                              : "a wrong message";
  }));
}

TEST_CASE("two levels in processes: a process that is killed ends the waits of all hosts at once") {
  for (const int killed : {0, 3}) {
    CAPTURE(killed);
    ConnectedRanks ranks = on_hosts(2, 2);
    const auto endings = run_connected(ranks, [&](auto& communicator, int rank) -> std::string {
      communicator->barrier("the start")->wait();
      if (rank == killed) {
        sleep_ms(500);
        raise(SIGKILL);
      }
      sum_bucket(*communicator);
      return "went through";
    });
    CHECK(WIFSIGNALED(endings[killed].status));
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == killed) continue;
      CAPTURE(rank);
      CHECK_THAT(endings[rank].text, StartsWith("CommError: ") && Contains("bucket 3"));
      CHECK(endings[rank].seconds < 30);  // the deadline is 60 s
    }
  }
}

TEST_CASE("two levels in processes: an announced failure ends the waits of all hosts, with its text") {
  const auto endings = run_connected(on_hosts(2, 2), [](auto& communicator, int rank) -> std::string {
    communicator->barrier("the start")->wait();
    if (rank == 3) {
      communicator->announce_failure("no more data");
      sleep_ms(6000);  // its connections stay
      return "announced";
    }
    try {
      sum_bucket(*communicator);
    } catch (const CommError& error) {
      communicator->announce_failure(error.what());  // as the engine does
      throw;
    }
    return "went through";
  });
  for (const int rank : {1, 2}) {  // the others on its host and with its place
    CAPTURE(rank);
    CHECK_THAT(endings[rank].text, StartsWith("CommError: ") && Contains("no more data"));
  }
  CHECK_THAT(endings[0].text, StartsWith("CommError: ") && Contains("no more data"));
  for (int rank = 0; rank < 3; ++rank) CHECK(endings[rank].seconds < 30);
}

TEST_CASE("two levels in processes: a rank that a signal has stopped is named at the deadline") {
  ConnectedRanks ranks = on_hosts(2, 2, std::chrono::seconds(6));
  ranks.first_rank = 3;  // process 3 is rank 2
  ranks.awaited = 3;
  const auto endings = run_connected(ranks, [](auto& communicator, int rank) -> std::string {
    communicator->barrier("the start")->wait();
    if (rank == 2) raise(SIGSTOP);
    try {
      sum_bucket(*communicator);
    } catch (const CommError&) {
      sleep_ms(1500);  // ranks that fail a moment later would lose the connection to this one
      throw;
    }
    return "went through";
  });
  int named = 0;
  for (int process = 0; process < 3; ++process) {
    CHECK_THAT(endings[process].text, StartsWith("CommError: ") && Contains("bucket 3"));
    CHECK(endings[process].seconds < 30);
    named += endings[process].text.find("rank 2 did not take part") != std::string::npos ? 1 : 0;
  }
  CHECK(named >= 1);
}

TEST_CASE("two levels in processes: uneven hosts, or one host only, are refused by name") {
  for (const auto& [count, per_host] : {std::pair(3, 2), std::pair(2, 1), std::pair(2, 2)}) {
    CAPTURE(count, per_host);
    const auto endings = run_connected({.transport = "two-level", .count = count, .per_host = per_host},
                                       [](auto&, int) { return "went through"; });
    for (const auto& ending : endings)
      CHECK_THAT(ending.text, StartsWith("UserError: two levels were requested (--comm two-level, "));
  }
}

}  // namespace zerorun
