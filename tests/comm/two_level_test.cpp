// Tests sums in groups of ranks, and communicators of two levels, on rank-threads: all collectives, parts,
// messages, ranks that wait in different orders or not at all, and errors.
#include <torch/torch.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "comm/mesh.h"
#include "comm/two_level/two_level_communicator.h"
#include "tests/comm/collective_script.h"
#include "tests/comm/two_levels.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"

namespace zerorun {
namespace {

using testing::expect;
using testing::expect_throws;
using testing::in_two_levels;
using testing::run_ranks;
using testing::ScriptMemory;

std::string in_ranks(int world_size, const std::function<std::string(std::shared_ptr<Communicator>)>& body) {
  std::vector<std::string> results(static_cast<size_t>(world_size));
  run_ranks(world_size, [&](std::shared_ptr<Communicator> world) { results[world->rank()] = body(world); });
  for (const std::string& result : results) {
    if (result != results.front()) return result;
  }
  return results.front();
}

}  // namespace

TEST_CASE("threads: sums in groups of 1 to 5 ranks add the groups' sums in order") {
  for (const int world_size : {2, 4, 5, 6}) {
    for (int group = 1; group <= 5; ++group) {
      CAPTURE(world_size, group);
      CHECK(in_ranks(world_size, [&](std::shared_ptr<Communicator> world) {
              world->set_sum_group(group);
              return testing::run_collective_script(*world, ScriptMemory::own, group);
            }) == testing::script_success(world_size));
    }
  }
}

TEST_CASE("two levels: every collective on 2 to 4 hosts, with the bits of sums over the ranks of each host") {
  struct Row {
    int hosts, per_host;
  };
  for (const Row& row : {Row{2, 2}, Row{2, 3}, Row{3, 2}, Row{4, 2}, Row{2, 4}}) {
    CAPTURE(row.hosts, row.per_host);
    const int ranks = row.hosts * row.per_host;
    CHECK(in_ranks(ranks, [&](std::shared_ptr<Communicator> world) {
            return testing::run_collective_script(*in_two_levels(world, row.per_host), ScriptMemory::both,
                                                  row.per_host);
          }) == testing::script_success(ranks));
  }
}

TEST_CASE("two levels: between hosts go 1/L of the elements that L ranks of a host would send") {
  constexpr int kSlice = 30;
  for (const int per_host : {2, 3}) {
    const int ranks = 2 * per_host;
    run_ranks(ranks, [&](std::shared_ptr<Communicator> world) {
      std::vector<RankGroup> hosts(2), places(static_cast<size_t>(per_host));
      RankGroup all;
      for (int rank = 0; rank < ranks; ++rank) {
        all.ranks.push_back(rank);
        hosts[rank / per_host].ranks.push_back(rank);
        places[rank % per_host].ranks.push_back(rank);
      }
      for (RankGroup& group : hosts) group.name = "host";
      for (RankGroup& group : places) group.name = "place";
      const auto across = world->split(places);
      const auto two = make_two_level_communicator({world->split(hosts), across}, all, {});
      across->volume().reset();
      const at::Tensor whole = at::ones({kSlice * ranks});
      two->reduce_scatter(at::empty({kSlice}), whole, "gradients")->wait();
      two->all_gather(whole, at::ones({kSlice}), "parameters")->wait();
      // Flat, each rank of a host sends a slice to each of the per_host ranks of the other host.
      expect(across->volume().elements(Collective::reduce_scatter) == kSlice, "gradients between hosts");
      expect(across->volume().elements(Collective::all_gather) == kSlice, "parameters between hosts");
    });
  }
}

TEST_CASE("two levels: ranks may be late, wait in different orders, and leave collectives behind") {
  run_ranks(4, [](std::shared_ptr<Communicator> world) {
    const auto two = in_two_levels(world, 2);
    for (int round = 0; round < 20; ++round) {
      if (two->rank() == round % 4) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      at::Tensor first = at::full({3}, 1.0F);
      at::Tensor second = at::full({3}, 10.0F * static_cast<float>(two->rank()));
      auto dropped = two->all_gather(at::empty({400}), at::ones({100}), "dropped");
      auto work1 = two->all_reduce(first, "first");
      auto work2 = two->all_reduce(second, "second");
      const bool reversed = two->rank() % 2 == 1;
      (reversed ? work2 : work1)->wait();
      (reversed ? work1 : work2)->wait();
      expect(first.sum().item<float>() == 12 && second.sum().item<float>() == 180, "sums of a round");
    }
    two->barrier("the end")->wait();
  });
}

TEST_CASE("two levels: a rank waits in one group while a collective of another one is under way") {
  run_ranks(8, [](std::shared_ptr<Communicator> world) {
    const auto two = in_two_levels(world, 4);
    const Mesh mesh(two, {.data = 4, .tensor = 2});
    for (int round = 0; round < 10; ++round) {
      at::Tensor of_data = at::ones({5});
      at::Tensor of_tensor = at::ones({5});
      const bool data_first = two->rank() % 2 == 0;
      auto data = mesh.data().all_reduce(of_data, "data");
      // The two tensor ranks wait for their groups in opposite orders.
      if (data_first) data->wait();
      mesh.along(MeshAxis::tensor).all_reduce(of_tensor, "tensor")->wait();
      if (!data_first) data->wait();
      expect(of_data.sum().item<float>() == 20 && of_tensor.sum().item<float>() == 10, "sums of groups");
    }
  });
}

TEST_CASE(
    "two levels: parts are on one host, across hosts, or of two levels, with the bits of a flat group") {
  struct Row {
    MeshSizes sizes;
    int per_host;
  };
  const Row rows[] = {{{.data = 2, .tensor = 2}, 2},
                      {{.data = 4, .tensor = 2}, 4},
                      {{.data = 2, .tensor = 2, .pipeline = 2}, 4},
                      {{.data = 2, .tensor = 4}, 2},
                      {{.data = 4, .pipeline = 2}, 2}};
  for (const Row& row : rows) {
    const int ranks = row.sizes.data * row.sizes.tensor * row.sizes.pipeline;
    CAPTURE(ranks, row.per_host);
    run_ranks(ranks, [&](std::shared_ptr<Communicator> world) {
      const Mesh flat(world, row.sizes);
      const Mesh mesh(in_two_levels(world, row.per_host), row.sizes);
      for (const MeshAxis axis : {MeshAxis::data, MeshAxis::tensor, MeshAxis::pipeline}) {
        Communicator& part = mesh.along(axis);
        Communicator& expected = flat.along(axis);
        expected.set_sum_group(row.per_host);
        expect(part.rank() == expected.rank() && part.world_size() == expected.world_size(),
               "the part's ranks");
        expect(part.group_of_ranks().ranks == expected.group_of_ranks().ranks, "numbers in the job");
        torch::manual_seed(world->rank());
        const at::Tensor values = at::randn({12 * part.world_size()});
        at::Tensor sum = at::empty({12}), wanted = at::empty({12});
        part.reduce_scatter(sum, values.clone(), "values")->wait();
        expected.reduce_scatter(wanted, values.clone(), "values")->wait();
        expect(at::equal(sum, wanted), "sums of a part");
      }
    });
  }
}

TEST_CASE("two levels: messages go on a host and between ranks with one place; others are refused") {
  run_ranks(4, [](std::shared_ptr<Communicator> world) {
    const auto two = in_two_levels(world, 2);
    const int near = two->rank() ^ 1, far = two->rank() ^ 2, diagonal = two->rank() ^ 3;
    for (const int other : {near, far}) {
      at::Tensor received = at::empty({3});
      auto receipt = two->receive(received, other, "values");
      two->send(at::full({3}, static_cast<float>(two->rank())), other, "values")->wait();
      receipt->wait();
      expect(received.sum().item<float>() == 3.0F * static_cast<float>(other), "a message");
    }
    expect_throws([&] { two->send(at::ones({3}), diagonal, "values")->wait(); },
                  "have different places there", "a message to another place");
  });
}

TEST_CASE("two levels: groups with different places on their hosts, and other groups of sums, are refused") {
  run_ranks(6, [](std::shared_ptr<Communicator> world) {
    const auto two = in_two_levels(world, 3);
    expect_throws([&] { Mesh(two, {.data = 3, .tensor = 2}); }, "different places on its hosts",
                  "tensor groups across hosts");
    expect_throws([&] { two->set_sum_group(2); }, "zerorun.sum_group", "another group of sums");
    two->set_sum_group(3);
    two->set_sum_group(0);
    two->barrier("the end")->wait();
  });
}

TEST_CASE("two levels: a rank that never comes ends the waits of all, and is named") {
  std::atomic<int> named = 0;
  run_ranks(
      4,
      [&](std::shared_ptr<Communicator> world) {
        const auto two = in_two_levels(world, 2);
        two->barrier("the start")->wait();
        if (two->rank() == 3) return;
        try {
          two->reduce_scatter(at::empty({2}), at::ones({8}), "bucket 3")->wait();
        } catch (const CommError& error) {
          const std::string text = error.what();
          if (text.find("bucket 3") != std::string::npos && text.find("rank 3") != std::string::npos) ++named;
          if (two->rank() == 2) {
            // The same error for what comes after.
            expect_throws([&] { two->barrier("later")->wait(); }, "bucket 3", "a later collective");
          }
        }
      },
      std::chrono::seconds(3));
  CHECK(named >= 2);  // rank 2, on its host, and rank 1, across; rank 0 may wait for one that has failed
}

TEST_CASE("two levels: a communicator with collectives under way that will never end is destroyed at once") {
  const auto start = std::chrono::steady_clock::now();
  run_ranks(4, [&](std::shared_ptr<Communicator> world) {
    const auto two = in_two_levels(world, 2);
    two->barrier("the start")->wait();
    if (two->rank() != 3) auto dropped = two->all_reduce(at::ones({4}), "never");
  });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));  // the deadline is 60 s
}

}  // namespace zerorun
