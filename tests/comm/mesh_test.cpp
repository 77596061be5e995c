// Tests the coordinates of a mesh, and groups of ranks that are threads.
#include "comm/mesh.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <limits>
#include <mutex>
#include <set>

#include "base/error.h"
#include "tests/comm/collective_script.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using testing::expect;
using testing::run_ranks;

std::string refusal_of(const MeshSizes& sizes, int world_size) {
  try {
    return "taken: data " + std::to_string(sizes.resolved(world_size).data);
  } catch (const UserError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("mesh: tensor ranks are neighbours, then data, then pipeline; every rank has one place") {
  const MeshSizes sizes{.data = 2, .tensor = 3, .pipeline = 2};
  CHECK(coordinates_of(0, sizes) == MeshCoordinates{0, 0, 0});
  CHECK(coordinates_of(1, sizes) == MeshCoordinates{.data = 0, .tensor = 1, .pipeline = 0});
  CHECK(coordinates_of(3, sizes) == MeshCoordinates{.data = 1, .tensor = 0, .pipeline = 0});
  CHECK(coordinates_of(6, sizes) == MeshCoordinates{.data = 0, .tensor = 0, .pipeline = 1});
  CHECK(describe(coordinates_of(11, sizes), sizes) == "data 1, tensor 2, pipeline 1");
  CHECK(describe(coordinates_of(3, {.data = 4}), {.data = 4}) == "data 3");
  for (int rank = 0; rank < 12; ++rank) CHECK(rank_at(coordinates_of(rank, sizes), sizes) == rank);
}

TEST_CASE("mesh: sizes must multiply to the number of ranks") {
  CHECK(refusal_of({}, 6) == "taken: data 6");
  CHECK(refusal_of({.data = 0, .tensor = 2}, 6) == "taken: data 3");
  CHECK_THAT(refusal_of({.data = 0, .tensor = 4}, 6),
             Contains("tensor 4 x pipeline 1 does not fit 6 ranks: the sizes must multiply"));
  CHECK_THAT(refusal_of({.data = 2, .tensor = 2}, 8),
             Contains("data 2 x tensor 2 x pipeline 1 does not fit 8"));
  constexpr int kMost = std::numeric_limits<int>::max();  // the product fits no int64
  CHECK_THAT(refusal_of({.data = kMost, .tensor = kMost, .pipeline = kMost}, 8),
             Contains("does not fit 8 ranks"));
  CHECK_THAT(refusal_of({.data = 8, .tensor = 0}, 8), Contains("each size must be at least 1"));
}

TEST_CASE("mesh: each rank has a communicator along each axis; one that spans all ranks is the world's") {
  run_ranks(4, [](std::shared_ptr<Communicator> world) {
    const Mesh mesh(world, {.data = 2, .tensor = 2});
    const int rank = world->rank();
    expect(mesh.data().group_of_ranks().ranks == std::vector<int>{rank % 2, rank % 2 + 2},
           "the group's ranks");
    expect(mesh.data().group_of_ranks().name == "data group at tensor " + std::to_string(rank % 2),
           "its name");
    expect(mesh.data().rank() == mesh.coordinates().data, "the rank in it");
    expect(mesh.along(MeshAxis::tensor).rank() == mesh.coordinates().tensor, "the rank in the tensor group");
    expect(mesh.along(MeshAxis::pipeline).world_size() == 1, "one rank along pipeline");
    const Mesh flat(world);
    expect(&flat.data() == world.get() && flat.sizes().data == 4, "the world is the data group");
  });
}

TEST_CASE("mesh: collectives of groups of threads have the bits of a world of their size") {
  run_ranks(6, [](std::shared_ptr<Communicator> world) {
    const Mesh mesh(world, {.data = 3, .tensor = 2});
    for (const MeshAxis axis : {MeshAxis::data, MeshAxis::tensor, MeshAxis::pipeline}) {
      Communicator& group = mesh.along(axis);
      const std::string found = testing::run_collective_script(group);
      expect(found == testing::script_success(group.world_size()), found);
    }
  });
}

TEST_CASE("mesh: ranks that differ on the groups are told so") {
  std::mutex mutex;
  std::set<std::string> errors;
  run_ranks(
      2,
      [&](std::shared_ptr<Communicator> world) {
        try {
          if (world->rank() == 0) {
            Mesh(world, {.data = 1, .tensor = 2});
          } else {
            Mesh(world, {.data = 2, .tensor = 1});
          }
        } catch (const CommError& error) {
          const std::lock_guard lock(mutex);
          errors.insert(error.what());
        }
      },
      std::chrono::seconds(5));
  REQUIRE(errors.size() == 2);
  for (const std::string& error : errors)
    CHECK_THAT(error, Contains("ranks disagree") && Contains("splitting"));
}

TEST_CASE("mesh: a large all-reduce counts as the two collectives that it is made of") {
  run_ranks(4, [](std::shared_ptr<Communicator> world) {
    const Mesh mesh(world, {.data = 2, .tensor = 2});
    Communicator& group = mesh.data();
    group.volume().reset();
    world->volume().reset();
    at::Tensor large = at::ones({kLargeSum});  // 4 bytes each
    group.all_reduce(large, "sum")->wait();
    expect(group.volume().elements(Collective::reduce_scatter) == kLargeSum / 2, "what reduce_scatter sends");
    expect(group.volume().elements(Collective::all_gather) == kLargeSum / 2, "what all_gather sends");
    expect(group.volume().elements(Collective::all_reduce) == 0, "nothing else is counted");
    expect(world->volume().elements(Collective::reduce_scatter) == 0, "nothing is counted for the world");
  });
}

TEST_CASE("mesh: a split must place every rank in one group") {
  run_ranks(3, [](std::shared_ptr<Communicator> world) {
    const auto refused = [&](const std::vector<RankGroup>& groups, const std::string& fault) {
      testing::expect_throws([&] { world->split(groups); }, fault, "a split whose fault is: " + fault);
    };
    refused({{"first", {0, 1}}}, "rank 2 is in no group");
    refused({{"first", {0, 1}}, {"second", {1, 2}}}, "rank 1 is in two groups");
    refused({{"first", {0, 1, 3}}}, "there is no rank 3 among 3");
    refused({{"first", {2, 1, 0}}}, "in ascending order");
    refused({{"", {0, 1, 2}}}, "has no name");
    refused({{"first", {0, 1, 2}}, {"second", {}}}, "one rank or more");
  });
}

TEST_CASE("mesh: messages of a group have its name and the ranks of the job, also for a group in a group") {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(
      4,
      [&](std::shared_ptr<Communicator> world) {
        const auto upper = world->split({{"lower half", {0, 1}}, {"upper half", {2, 3}}});
        const auto one_by_one = upper->split({{"pair", {0, 1}}});
        if (world->rank() != 2) return;
        try {
          one_by_one->barrier("the end")->wait();
        } catch (const CommError& error) {
          const std::lock_guard lock(mutex);
          errors.emplace_back(error.what());
        }
      },
      std::chrono::milliseconds(300));
  REQUIRE(errors.size() == 1);
  CHECK_THAT(errors[0],
             Contains("barrier of the end in the pair (ranks 2, 3): rank 3 did not take part within"));
}

}  // namespace zerorun
