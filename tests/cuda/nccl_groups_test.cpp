// Tests groups of ranks over NCCL that Communicator::split() makes, without a GPU: ranks are threads on fake
// GPUs, and an NCCL in memory moves values (moving_nccl.h). Values are those of a loop over the group's
// ranks.
#include <torch/torch.h>

#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <span>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/error.h"
#include "comm/mesh.h"
#include "cuda/nccl_communicator.h"
#include "tests/cuda/moving_nccl.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;
constexpr MeshSizes kCube{.data = 2, .tensor = 2, .pipeline = 2};
constexpr int kRanks = 8;

using GpuBody = std::function<void(const Mesh& mesh)>;

// Calls `body` on each rank of a mesh over NCCL. Rank r is on GPU r.
void run_on_gpus(const MeshSizes& sizes, const GpuBody& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(
      sizes.data * sizes.tensor * sizes.pipeline,
      [&](std::shared_ptr<Communicator> control) {
        Environment place;
        place.rank = control->rank();
        place.world_size = control->world_size();
        place.timeout = control->timeout();
        const auto own = std::make_shared<const JobStore>(store, "rank 0", Seal("secret"), "job/");
        auto world =
            std::make_shared<NcclCommunicator>(place, std::make_shared<CudaDevice>(place.rank), control, own);
        body(Mesh(std::move(world), sizes));
      },
      std::chrono::seconds(60), false);
}

std::span<float> floats(const at::Tensor& tensor) {
  return {static_cast<float*>(tensor.mutable_data_ptr()), static_cast<size_t>(tensor.numel())};
}

// What rank `rank` of the job has at position `i`.
float value(int rank, size_t i) {
  return static_cast<float>(100 * (rank + 1) + static_cast<int>(i));
}

at::Tensor values_of(Communicator& group, int64_t numel) {
  at::Tensor tensor = group.allocate(numel, at::kFloat);
  const int rank = group.rank_in_job(group.rank());
  for (size_t i = 0; i < floats(tensor).size(); ++i) floats(tensor)[i] = value(rank, i);
  return tensor;
}

float sum_of(const Communicator& group, size_t i) {
  float sum = 0;
  for (const int rank : group.group_of_ranks().ranks) sum += value(rank, i);
  return sum;
}

constexpr std::array kKinds = {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce,
                               Collective::broadcast};

// A collective on the group, and the check of its result once it has been waited for.
std::function<void()> start_on(Communicator& group, Collective kind, int64_t numel) {
  const auto size = static_cast<size_t>(group.world_size());
  const auto count = static_cast<size_t>(numel);
  const auto own = static_cast<size_t>(group.rank());
  at::Tensor input =
      values_of(group, kind == Collective::reduce_scatter ? numel * group.world_size() : numel);
  at::Tensor output = input;
  std::shared_ptr<Work> work;
  std::function<float(size_t)> expected;
  switch (kind) {
    case Collective::all_gather:
      output = group.allocate(numel * group.world_size(), at::kFloat);
      work = group.all_gather(output, input, "values");
      expected = [&group, count](size_t i) {
        return value(group.rank_in_job(static_cast<int>(i / count)), i % count);
      };
      break;
    case Collective::reduce_scatter:
      output = group.allocate(numel, at::kFloat);
      work = group.reduce_scatter(output, input, "values");
      expected = [&group, own, count](size_t i) { return sum_of(group, own * count + i); };
      break;
    case Collective::all_reduce:
      work = group.all_reduce(input, "values");
      expected = [&group](size_t i) { return sum_of(group, i); };
      break;
    default:
      work = group.broadcast(input, static_cast<int>(size) - 1, "values");
      expected = [&group, size](size_t i) { return value(group.rank_in_job(static_cast<int>(size) - 1), i); };
  }
  return [=] {
    work->wait();
    for (size_t i = 0; i < floats(output).size(); ++i)
      expect(floats(output)[i] == expected(i), name_of(kind) + std::string(" at ") + std::to_string(i));
  };
}

Communicator& group_of(const Mesh& mesh, int which) {
  return which == kMeshAxes ? mesh.world() : mesh.along(static_cast<MeshAxis>(which));
}

// The launches of `of` on communicators that `with` has launched on, too.
std::vector<Launch> common(const std::vector<Launch>& of, const std::vector<Launch>& with) {
  std::set<int> known;
  for (const Launch& launch : with) known.insert(launch.communicator);
  std::vector<Launch> found;
  for (const Launch& launch : of) {
    if (known.contains(launch.communicator)) found.push_back(launch);
  }
  return found;
}

}  // namespace

TEST_CASE("nccl groups: every collective in each group of a mesh has the values of the group's ranks") {
  for (const MeshSizes& sizes : {kCube, MeshSizes{.data = 1, .tensor = 2, .pipeline = 3},
                                 MeshSizes{.data = 3, .tensor = 1, .pipeline = 2}}) {
    reset_moving_nccl();
    CHECK_NOTHROW(run_on_gpus(sizes, [](const Mesh& mesh) {
      for (int which = 0; which <= kMeshAxes; ++which) {
        for (const Collective kind : kKinds) start_on(group_of(mesh, which), kind, 5)();
        group_of(mesh, which).barrier("of the group")->wait();
        at::Tensor on_cpu = at::ones({3});
        group_of(mesh, which).all_reduce(on_cpu, "on the CPU")->wait();
        expect(on_cpu[2].item<int>() == group_of(mesh, which).world_size(), "a sum on the CPU");
      }
    }));
  }
}

TEST_CASE("nccl groups: ranks launch the collectives of all groups in one order, the program's") {
  for (const unsigned seed : {1U, 2U, 3U}) {
    CAPTURE(seed);
    reset_moving_nccl();
    std::array<std::vector<std::string>, kRanks> programs;
    CHECK_NOTHROW(run_on_gpus(kCube, [&](const Mesh& mesh) {
      std::vector<std::string>& program = programs[static_cast<size_t>(mesh.world().rank())];
      std::mt19937 dice(seed);  // the same on all ranks
      Streams& streams = mesh.world().device().streams();
      std::vector<std::function<void()>> open;
      for (int step = 0; step < 60; ++step) {
        Communicator& group = group_of(mesh, static_cast<int>(dice() % (kMeshAxes + 1)));
        const bool gathers = dice() % 2 == 0;
        const StreamScope stream(streams, gathers ? Lane::gather : Lane::reduce);
        const auto start = [&] {
          const Collective kind = kKinds[dice() % kKinds.size()];
          program.emplace_back(name_of(kind));
          open.push_back(start_on(group, kind, 1 + static_cast<int64_t>(dice() % 7)));
        };
        if (dice() % 3 == 0) {
          group.as_one([&] {
            start();
            start();
          });
        } else {
          start();
        }
        if (dice() % 4 == 0) {
          for (const auto& check : open) check();
          open.clear();
        }
      }
      for (const auto& check : open) check();
    }));
    for (int rank = 0; rank < kRanks; ++rank) {
      CAPTURE(rank);
      const std::vector<Launch> launches = launches_of(rank);
      std::vector<std::string> launched;
      for (const Launch& launch : launches) launched.push_back(launch.what);
      CHECK(launched == programs[static_cast<size_t>(rank)]);
      std::map<int, std::set<bool>> uses;  // by communicator: whether it reduces
      for (const Launch& launch : launches)
        uses[launch.communicator].insert(launch.what == "reduce_scatter" || launch.what == "all_reduce");
      CHECK(uses.size() == 2 * (kMeshAxes + 1));
      for (const auto& [communicator, kinds] : uses) CHECK(kinds.size() == 1);
      for (int other = 0; other < rank; ++other) {
        const std::vector<Launch> theirs = launches_of(other);
        CHECK((common(launches, theirs) == common(theirs, launches)));
      }
    }
  }
}

TEST_CASE("nccl groups: launches in different orders are noticed by these tests") {
  reset_moving_nccl(std::chrono::milliseconds(500));
  CHECK_THROWS_WITH(run_on_gpus({.data = 2, .tensor = 2},
                                [](const Mesh& mesh) {
                                  const bool first = mesh.coordinates().data == 0;
                                  start_on(group_of(mesh, first ? 0 : kMeshAxes), Collective::all_reduce, 4);
                                  start_on(group_of(mesh, first ? kMeshAxes : 0), Collective::all_reduce, 4);
                                }),
                    Contains("all_reduce of values"));
}

TEST_CASE("nccl groups: messages between the stages of each pipeline group") {
  constexpr MeshSizes kSizes{.data = 2, .tensor = 1, .pipeline = 4};
  reset_moving_nccl();
  CHECK_NOTHROW(run_on_gpus(kSizes, [](const Mesh& mesh) {
    Communicator& stages = mesh.along(MeshAxis::pipeline);
    const int own = stages.rank();
    const int last = stages.world_size() - 1;
    expect_throws([&] { stages.send(values_of(stages, 3), (own + 1) % 4, "early")->wait(); },
                  "call open_messages()", "a message before open_messages()");
    stages.open_messages({{0, 1}, {1, 2}, {2, 3}});
    const auto check = [&](const at::Tensor& arrived, int from, const std::string& what) {
      for (size_t i = 0; i < floats(arrived).size(); ++i)
        expect(floats(arrived)[i] == value(stages.rank_in_job(from), i), what);
    };
    for (int round = 0; round < 5; ++round) {
      const int64_t up = 10 + round;
      const int64_t down = 3 + round;
      const at::Tensor activations = stages.allocate(up, at::kFloat);
      const at::Tensor gradients = stages.allocate(down, at::kFloat);
      // Both receives are posted before anything is sent.
      const auto from_before = own > 0 ? stages.receive(activations, own - 1, "activations") : nullptr;
      const auto from_behind = own < last ? stages.receive(gradients, own + 1, "gradients") : nullptr;
      if (own < last) stages.send(values_of(stages, up), own + 1, "activations")->wait();
      start_on(mesh.data(), Collective::reduce_scatter, 4)();  // a reduction in between
      if (own > 0) stages.send(values_of(stages, down), own - 1, "gradients")->wait();
      if (from_before) from_before->wait();
      if (from_behind) from_behind->wait();
      if (own > 0) check(activations, own - 1, "activations of round " + std::to_string(round));
      if (own < last) check(gradients, own + 1, "gradients of round " + std::to_string(round));
    }
  }));
  // Each direction of a pair has a communicator of its own, which carries nothing else.
  for (int rank = 0; rank < kRanks; ++rank) {
    std::map<int, std::set<std::string>> uses;
    for (const Launch& launch : launches_of(rank)) uses[launch.communicator].insert(launch.what);
    for (const auto& [communicator, what] : uses) CHECK(what.size() == 1);
    const bool is_end = rank < 2 || rank >= 6;
    CHECK(uses.size() == (is_end ? 3 : 5));
  }
}

}  // namespace zerorun::testing
