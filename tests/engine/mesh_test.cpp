// Tests data groups of a larger job: each trains as a job of its own size, and all are clipped by one norm.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/engine/mesh_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

constexpr int kSteps = 5;

struct Trained {
  std::vector<at::Tensor> parameters;
  std::vector<double> norms;
  std::vector<double> scales;
  std::vector<double> rates;
  double reduced = 0;  // elements sent
};

// Trains as data rank `engine.mesh().data().rank()`; `seed` chooses the samples.
Trained train(Engine& engine, Net& model, int seed = 0) {
  Trained trained;
  Communicator& data = engine.mesh().data();
  data.volume().reset();
  const int accumulation = static_cast<int>(engine.config().batch.gradient_accumulation_steps);
  for (int step = 0; step < kSteps; ++step) {
    trained.rates.push_back(engine.get_lr().front());
    for (int micro = 0; micro < accumulation; ++micro) {
      engine.backward(loss_of_net(model, step, micro, data.rank() + 1000 * seed));
      engine.step();
    }
    trained.norms.push_back(engine.get_global_grad_norm());
    trained.scales.push_back(engine.loss_scale());
  }
  trained.reduced = data.volume().elements(Collective::reduce_scatter);
  trained.parameters = copies_of(*model);
  return trained;
}

// Trains a job of `ranks`, and returns what each of its ranks has. `initial` chooses the model's values.
std::vector<Trained> train_alone(int ranks, const std::string& config, int seed = 0, uint64_t initial = 100) {
  std::vector<Trained> result(ranks);
  run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model;
    fill(*model, initial);
    Engine engine = make_engine_in(*model, config, std::move(communicator), MeshSizes());
    result[rank] = train(engine, model, seed);
  });
  return result;
}

void expect_same(const Trained& found, const Trained& expected, const std::string& what) {
  testing::expect_same(found.parameters, expected.parameters, what);
  expect(found.norms == expected.norms, what + ": the norms");
  expect(found.scales == expected.scales, what + ": the loss scales");
  expect(found.reduced == expected.reduced, what + ": the elements sent by reduce_scatter");
}

const std::vector<MeshSizes> kMeshes = {{4, 1, 1}, {2, 2, 1}, {2, 1, 2}, {1, 4, 1}, {1, 2, 2},
                                        {8, 1, 1}, {4, 2, 1}, {2, 4, 1}, {2, 2, 2}, {2, 1, 4}};

}  // namespace

TEST_CASE("Each data group of a mesh gets the bits of a job of its size") {
  for (const auto [shape, stage, precision, accumulates, clips, optimizer] :
       settings(static_cast<int>(kMeshes.size()), 4, 3, 2, 2, 4)) {
    const MeshSizes mesh = kMeshes[shape];
    CAPTURE(describe(mesh), stage, precision, accumulates, clips, optimizer);
    const std::string config =
        mesh_config(stage, kPrecisions[precision], 1 + accumulates, clips * 0.005, kOptimizers[optimizer]);
    std::vector<Trained> alone;
    REQUIRE_NOTHROW(alone = train_alone(mesh.data, config));
    CHECK(alone[0].norms.back() > 0.01);  // so clips
    CHECK_NOTHROW(run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      Engine engine = make_engine_in(*model, config, std::move(communicator), mesh);
      const int rank = engine.mesh().data().rank();
      expect_same(train(engine, model), alone[rank], "data rank " + std::to_string(rank));
    }));
  }
}

TEST_CASE("Data groups of a mesh keep their offloaded states in files of their own") {
  const MeshSizes mesh{.data = 2, .tensor = 2, .pipeline = 1};
  for (const auto& [stage, values] : {std::pair(1, false), {2, false}, {3, false}, {3, true}}) {
    CAPTURE(stage, values);
    const TemporaryFolder folder;
    const std::string place = R"({"device": "nvme", "nvme_path": ")" + (folder / "").string() + '"';
    const std::string zero = R"(, "offload_optimizer": )" + place + "}" +
                             (values ? R"(, "offload_param": )" + place + R"(, "max_in_cpu": 0})" : "");
    const std::string config = mesh_config(stage, "", 1, 0.05, kOptimizers[0], zero);
    std::vector<Trained> alone;
    REQUIRE_NOTHROW(alone = train_alone(mesh.data, config));
    CHECK_NOTHROW(run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      Engine engine = make_engine_in(*model, config, std::move(communicator), mesh);
      const int rank = engine.mesh().data().rank();
      expect_same(train(engine, model), alone[rank], "data rank " + std::to_string(rank));
    }));
  }
}

TEST_CASE(
    "Data groups with other initial values and samples train as jobs of their own, and the norm is the "
    "first's") {
  const int stage = GENERATE(0, 1, 2, 3);
  const MeshSizes mesh = GENERATE(MeshSizes{2, 2, 1}, MeshSizes{2, 1, 2});
  CAPTURE(stage, describe(mesh));
  const std::string config = mesh_config(stage);
  std::vector<std::vector<Trained>> alone;
  for (const int group : {0, 1}) {
    REQUIRE_NOTHROW(alone.push_back(train_alone(mesh.data, config, group, 100 + 50 * group)));
    for (Trained& of_rank : alone.back()) of_rank.norms = alone[0][0].norms;
  }
  CHECK_NOTHROW(run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
    const int rank_in_world = communicator->rank();
    const MeshSizes sizes = mesh.resolved(communicator->world_size());
    const MeshCoordinates place = coordinates_of(rank_in_world, sizes);
    const int group = place.tensor + place.pipeline;
    Net model;
    // Only the first rank of a data group gives initial values.
    fill(*model, place.data == 0 ? 100 + 50 * group : 7);
    Engine engine = make_engine_in(*model, config, std::move(communicator), mesh);
    expect(group_of(engine.mesh()) == group, "the group");
    expect_same(train(engine, model, group), alone[group][engine.mesh().data().rank()],
                "rank " + std::to_string(rank_in_world));
  }));
}

TEST_CASE("All data groups are clipped by the norm of the first, whose bits do not depend on the others") {
  const int stage = GENERATE(0, 1, 2, 3);
  const MeshSizes mesh{.data = 2, .tensor = 2, .pipeline = 1};
  CAPTURE(stage);
  const std::string config = mesh_config(stage, "", 1, 0.05, kOptimizers[1]);
  std::vector<Trained> alone;
  REQUIRE_NOTHROW(alone = train_alone(mesh.data, config));
  CHECK_NOTHROW(run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
    Net model, unclipped;
    const auto data_size = mesh.data;
    Engine engine = make_engine_in(*model, config, communicator, mesh);
    const int group = group_of(engine.mesh());
    const int rank = engine.mesh().data().rank();
    if (group == 0) {
      expect_same(train(engine, model), alone[rank], "the first group");
      return;
    }
    const Trained trained = train(engine, model, group);
    expect(trained.norms == alone[rank].norms, "the norms of the other group");
    // The same steps with plain LibTorch.
    for (int step = 0; step < kSteps; ++step) {
      unclipped->zero_grad();
      for (int other = 0; other < data_size; ++other)
        (loss_of_net(unclipped, step, 0, other + 1000 * group) / data_size).backward();
      const double lr = trained.rates[step];
      torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : unclipped->parameters())
        if (parameter.grad().defined())
          parameter.sub_(parameter.grad() * (lr * std::min(1.0, 0.05 / (trained.norms[step] + 1e-6))));
    }
    const auto expected = unclipped->parameters();
    for (size_t index = 0; index < expected.size(); ++index)
      expect(torch::allclose(trained.parameters[index], expected[index], 1e-4, 1e-6), "clipped parameters");
  }));
}

}  // namespace zerorun::testing
