// Tests groups of ranks that are processes, over Gloo and shared memory: the bits of a world of the group's
// size, progress in one group while a rank waits in another, and errors that name the group, its ranks as
// numbers in the job, and what happened in another group.
#include <sys/wait.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <set>
#include <thread>

#include "base/error.h"
#include "comm/mesh.h"
#include "comm/notices.h"
#include "tests/comm/collective_script.h"
#include "tests/comm/transport_ranks.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using testing::check_texts;
using testing::Ending;
using testing::run_connected;
using testing::run_over_both;
using testing::ScriptMemory;
using testing::sleep_ms;
using testing::stay_away;

constexpr const char* kOverBoth[] = {"gloo", "shm"};
constexpr MeshSizes kTwoByTwo{.data = 2, .tensor = 2};

void meet(Communicator& group, const std::string& label) {
  at::Tensor one = at::ones({4});
  group.all_reduce(one, label)->wait();
}

int64_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

}  // namespace

TEST_CASE("groups: every collective in groups of a mesh has the bits of a world of their size") {
  for (const char* transport : kOverBoth) {
    INFO(transport);
    for (const MeshSizes& sizes :
         {MeshSizes{.data = 2, .tensor = 2}, MeshSizes{.data = 1, .tensor = 2, .pipeline = 3}}) {
      const int count = sizes.data * sizes.tensor * sizes.pipeline;
      check_texts(run_connected({transport, count}, [&](auto& world, int) -> std::string {
        const Mesh mesh(world, sizes);
        for (Communicator* group :
             {&mesh.data(), &mesh.along(MeshAxis::tensor), &mesh.along(MeshAxis::pipeline), &mesh.world()}) {
          const std::string result = testing::run_collective_script(*group, ScriptMemory::both);
          if (result != testing::script_success(group->world_size())) return result;
        }
        return "went through";
      }));
    }
  }
}

TEST_CASE("groups: collectives of several groups may be in flight at once") {
  for (const char* transport : kOverBoth) {
    INFO(transport);
    const auto endings = run_connected({transport, 4}, [](auto& world, int rank) {
      const Mesh mesh(world, kTwoByTwo);
      double total = 0;
      for (int round = 0; round < 50; ++round) {
        at::Tensor along_data = at::full({3000}, rank + 1.0F);
        at::Tensor along_tensor = at::full({3000}, 10.0F * (rank + 1));
        at::Tensor of_all = at::full({3000}, 100.0F * (rank + 1));
        auto first = mesh.data().all_reduce(along_data, "same label");
        auto second = mesh.along(MeshAxis::tensor).all_reduce(along_tensor, "same label");
        auto third = mesh.world().all_reduce(of_all, "same label");
        for (auto* work :
             rank % 2 == 0 ? std::array{&first, &second, &third} : std::array{&third, &second, &first}) {
          (*work)->wait();
        }
        const auto at = [](const at::Tensor& tensor) { return tensor[2999].item<double>(); };
        const double data = rank % 2 == 0 ? 4 : 6;
        const double tensor = rank < 2 ? 30 : 70;
        total += std::abs(at(along_data) - data) + std::abs(at(along_tensor) - tensor) +
                 std::abs(at(of_all) - 1000);
      }
      return std::to_string(total);
    });
    check_texts(endings, "0.000000");
  }
}

TEST_CASE("groups: a rank that waits in one group does its part in the others") {
  const auto endings = run_connected({"shm", 4, std::chrono::seconds(10)}, [](auto& world, int rank) {
    const Mesh mesh(world, kTwoByTwo);  // data: 0 2, 1 3; tensor: 0 1, 2 3
    const auto notices = world->open_notices();
    const Deadline deadline(std::chrono::seconds(8));
    at::Tensor input = world->allocate(4000, at::kFloat).fill_(rank + 1);
    at::Tensor output = at::empty({2000});
    if (rank == 0) {
      auto ahead = mesh.data().reduce_scatter(output, input, "started ahead");
      meet(mesh.along(MeshAxis::tensor), "the wait");  // rank 1 comes only when rank 2 has its sum
      ahead->wait();
      return std::to_string(output[0].template item<float>());
    }
    if (rank == 2) {
      mesh.data().reduce_scatter(output, input, "started ahead")->wait();
      notices->post("rank 2 is done", "", deadline);
      return std::to_string(output[0].template item<float>());
    }
    if (rank == 1) {
      if (!notices->await("rank 2 is done", deadline)) return std::string("rank 2 was not served");
      meet(mesh.along(MeshAxis::tensor), "the wait");
    }
    return std::string("4.000000");
  });
  check_texts(endings, "4.000000");
}

TEST_CASE("groups: a rank that is late is named with the group") {
  const testing::ConnectedRanks ranks{.count = 4, .timeout = std::chrono::milliseconds(1500), .awaited = 3};
  for (const auto& [transport, endings] : run_over_both(ranks, [](auto&world, int rank) -> std::string {
         const Mesh mesh(world, kTwoByTwo);
         if (rank == 3) stay_away();
         if (rank == 1) meet(mesh.data(), "bucket 3");
         return "went through";
       })) {
    INFO(transport);
    CHECK_THAT(
        endings[1].text,
        StartsWith("CommError: all_reduce of bucket 3 in the data group at tensor 1 (ranks 1, 3): rank 3 did "
                   "not take part within 1.5 s"));
  }
}

TEST_CASE("groups: a rank that waits for one that failed in another group is told the cause") {
  for (const char* transport : kOverBoth) {
    INFO(transport);
    const auto endings =
        run_connected({transport, 4, std::chrono::seconds(20)}, [](auto& world, int rank) -> std::string {
          const Mesh mesh(world, kTwoByTwo);
          if (rank == 3) _exit(3);
          if (rank == 1) meet(mesh.data(), "bucket 3");
          if (rank == 0) meet(mesh.along(MeshAxis::tensor), "a sum");
          return "went through";
        });
    CHECK_THAT(
        endings[1].text,
        Contains("all_reduce of bucket 3 in the data group at tensor 1 (ranks 1, 3)") && Contains("rank 3"));
    CHECK_THAT(endings[0].text,
               StartsWith("CommError: all_reduce of a sum in the tensor group at data 0 (ranks 0, 1)") &&
                   Contains("rank 1 had failed before: all_reduce of bucket 3 in the data group") &&
                   Contains("rank 3"));
    CHECK(endings[0].seconds < 10);
  }
}

TEST_CASE("groups: a rank that is killed is named at once, with the group that waits for it") {
  for (const char* transport : kOverBoth) {
    INFO(transport);
    const std::string over = transport;
    // Process 0 is rank 3, because run_processes() waits for process 0 first.
    const testing::ConnectedRanks ranks{.transport = transport, .count = 4, .first_rank = 3};
    const auto endings = run_connected(ranks, [](auto& world, int rank) -> std::string {
      const Mesh mesh(world, kTwoByTwo);  // data: 0 2, 1 3; tensor: 0 1, 2 3
      world->barrier("the start")->wait();
      if (rank == 3) {
        sleep_ms(500);
        raise(SIGKILL);
      }
      try {
        at::Tensor value = at::ones({4});
        if (rank == 1) meet(mesh.data(), "bucket 3");
        if (rank == 2) mesh.along(MeshAxis::tensor).receive(value, 1, "activations")->wait();
        if (rank == 0) world->barrier("the end")->wait();
      } catch (const CommError&) {
        sleep_ms(1500);  // a rank that has ended would be named by the others
        throw;
      }
      return "went through";
    });
    CHECK(WIFSIGNALED(endings[0].status));
    const std::string killed =
        over == "shm" ? "rank 3 has ended (process " : "lost the connection to rank 3, ";
    // Over Gloo rank 0 waits for one rank after the other, and its first one has failed in a group.
    CHECK_THAT(endings[1].text, StartsWith("CommError: barrier of the end: ") && Contains(killed));
    CHECK_THAT(endings[2].text, StartsWith("CommError: all_reduce of bucket 3 in the data group at tensor 1 "
                                           "(ranks 1, 3): " +
                                           killed));
    CHECK_THAT(
        endings[3].text,
        StartsWith("CommError: receive of activations in the tensor group at data 1 (ranks 2, 3) (message "
                   "1 from rank 3 to rank 2): " +
                   killed));
    for (int index = 1; index < 4; ++index) CHECK(endings[index].seconds - endings[0].seconds < 6);
  }
}

TEST_CASE("groups: two ranks that wait for each other in different groups end before the deadline") {
  const auto endings =
      run_connected({.transport = "shm", .count = 4, .timeout = std::chrono::seconds(60), .awaited = 2},
                    [](auto& world, int rank) -> std::string {
                      const Mesh mesh(world, kTwoByTwo);
                      if (rank == 0) meet(mesh.along(MeshAxis::tensor), "a sum");
                      if (rank == 1) meet(mesh.world(), "the loss");
                      stay_away();
                    });
  CHECK_THAT(
      endings[0].text,
      Contains("rank 0 is in all_reduce of a sum in the tensor group at data 0 (ranks 0, 1), rank 1 in "
               "all_reduce of the loss"));
  CHECK(endings[0].seconds < 20);
}

TEST_CASE("groups: a late rank of another group is named as what the missing rank waits for") {
  const auto endings =
      run_connected({.transport = "shm", .count = 4, .timeout = std::chrono::seconds(2), .awaited = 3},
                    [](auto& world, int rank) -> std::string {
                      const Mesh mesh(world, kTwoByTwo);
                      if (rank == 3) stay_away();
                      if (rank == 1) {
                        sleep_ms(500);  // its own deadline comes later
                        meet(mesh.data(), "bucket 3");
                      }
                      if (rank == 0) meet(mesh.along(MeshAxis::tensor), "a sum");
                      return "went through";
                    });
  CHECK_THAT(endings[0].text,
             Contains("rank 1 did not take part within 2 s") &&
                 Contains("rank 1 waits for all_reduce of bucket 3 in the data group at tensor 1"));
}

// Over shared memory a block that was not given back would never be reserved again, so that each round would
// get another place.
TEST_CASE("groups: 100 are made and let go without a leak of memory or files") {
  for (const char* transport : kOverBoth) {
    INFO(transport);
    const auto endings = run_connected({transport, 4}, [](auto& world, int) -> std::string {
      int64_t files = 0;
      std::set<const void*> places;
      for (int round = 0; round < 55; ++round) {
        if (round == 5) files = open_files();
        const Mesh mesh(world, kTwoByTwo);
        meet(mesh.data(), "round");
        meet(mesh.along(MeshAxis::tensor), "round");
        const at::Tensor shared = mesh.data().allocate_shared(1 << 20, at::kFloat);
        if (shared.defined()) places.insert(shared.const_data_ptr());
        const int64_t scratch = world->scratch_bytes();
        if (scratch > 1 << 20) return std::to_string(scratch) + " bytes of scratch";
      }
      world->barrier("the end")->wait();
      const int64_t opened = open_files() - files;
      if (places.size() > 6) return std::to_string(places.size()) + " places";
      return opened > 8 ? std::to_string(opened) + " files more" : "went through";
    });
    check_texts(endings);
  }
}

TEST_CASE("groups: several threads of a rank wait in different groups") {
  const auto endings = run_connected({"shm", 4, std::chrono::seconds(30)}, [](auto& world, int) {
    const Mesh mesh(world, kTwoByTwo);
    std::thread other([&] {
      for (int round = 0; round < 200; ++round) meet(mesh.along(MeshAxis::tensor), "other thread");
    });
    for (int round = 0; round < 200; ++round) meet(mesh.data(), "own thread");
    other.join();
    return std::string("went through");
  });
  check_texts(endings);
}

TEST_CASE("groups: a collective that cannot be computed is an error, and its rank ends in order") {
  const auto endings = run_connected({"shm", 2, std::chrono::seconds(5)}, [](auto& world, int) {
    const auto group = world->split({{"both", {0, 1}}});
    at::Tensor bytes = at::ones({64}, at::kByte);  // sums of bytes do not exist
    try {
      group->all_reduce(bytes, "bytes")->wait();
    } catch (const std::exception&) {
      return std::string("went through");
    }
    return std::string("no error");
  });
  check_texts(endings);
}

TEST_CASE("groups: a group that is let go while others still read neither blocks nor disturbs the rest") {
  const auto endings = run_connected({"shm", 4, std::chrono::seconds(20)}, [](auto& world, int rank) {
    std::string text = "went through";
    {
      const Mesh mesh(world, kTwoByTwo);
      if (rank == 3) sleep_ms(1500);
      at::Tensor whole = at::empty({4000});
      auto work = mesh.data().all_gather(whole, mesh.data().allocate(2000, at::kFloat).fill_(rank), "gather");
      if (rank == 3) {
        work->wait();
        if (whole[0].template item<float>() != 1 || whole[3999].template item<float>() != 3)
          text = "wrong values";
      }
      // The others drop the collective, and the mesh.
    }
    const auto start = std::chrono::steady_clock::now();
    if (rank != 3) meet(*world->split({{"others", {0, 1, 2}}, {"last", {3}}}), "others");
    if (rank == 3) world->split({{"others", {0, 1, 2}}, {"last", {3}}});
    meet(*world, "all");
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(8)) text = "blocked";
    return text;
  });
  check_texts(endings);
}

TEST_CASE("groups: ranks of a group share memory") {
  const auto endings = run_connected({"shm", 4}, [](auto& world, int rank) {
    const Mesh mesh(world, kTwoByTwo);
    Communicator& group = mesh.data();
    at::Tensor shared = group.allocate_shared(2 * 5000, at::kFloat);
    if (!shared.defined()) return std::string("no room");
    at::Tensor own = shared.narrow(0, group.rank() * 5000, 5000).fill_(rank + 1);
    group.all_gather(shared, own, "in place")->wait();
    const double sum = shared.sum().template item<double>();
    return sum == 5000.0 * (rank % 2 == 0 ? 4 : 6) ? std::string("went through") : std::to_string(sum);
  });
  check_texts(endings);
}

TEST_CASE("groups: memory that one group shares is each rank's own in another group") {
  const auto endings = run_connected({"shm", 4}, [](auto& world, int rank) {
    const Mesh mesh(world, kTwoByTwo);
    const at::Tensor shared = mesh.data().allocate_shared(5000, at::kFloat);
    if (!shared.defined()) return std::string("no room");
    if (mesh.data().rank() == 0) shared.fill_(rank + 1);
    mesh.data().broadcast(shared, 0, "shared")->wait();
    // Of the two data groups, 1 and 2: the second gets the first one's.
    Communicator& others = mesh.along(MeshAxis::tensor);
    if (mesh.data().rank() == 0) others.broadcast(shared, 0, "from the first group")->wait();
    mesh.data().barrier("all have it")->wait();
    const double sum = shared.sum().template item<double>();
    return sum == 5000.0 ? std::string("went through") : std::to_string(sum);
  });
  check_texts(endings);
}

}  // namespace zerorun
