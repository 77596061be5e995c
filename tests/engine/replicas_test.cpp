// Tests meshes with replicas: states are sliced among the data ranks of a replica, and the replicas sum their
// gradients (HSDP).
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/parameter_states.h"
#include "tests/engine/collected_state.h"
#include "tests/engine/mesh_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

constexpr int kReplicaRanks = 4;

struct ReplicasRun {
  CollectedState state;
  std::vector<float> losses;  // of rank 0
};

std::string with_replicas(int replicate, int accumulation = 1) {
  return R"(, "zerorun": {"mesh": {"replicate": )" + std::to_string(replicate) +
         R"(}}, "gradient_accumulation_steps": )" + std::to_string(accumulation);
}

void take_steps(StateTraining& training, int first, int count, std::vector<float>& losses) {
  for (int step = first; step < first + count; ++step) {
    const float loss = training.step(step);
    if (training.engine->communicator().rank() == 0) losses.push_back(loss);
  }
}

// Six micro-steps on four ranks: `replicate` replicas, or flat with sums in groups of a replica's size.
void train_replicas(ReplicasRun& run, const StateCase& how, int stage, const std::string& precision,
                    int accumulation, int replicate, bool flat) {
  run_ranks(kReplicaRanks, [&](std::shared_ptr<Communicator> world) {
    if (flat) world->set_sum_group(kReplicaRanks / replicate);
    StateTraining training(how, stage, precision, world, with_replicas(flat ? 1 : replicate, accumulation));
    take_steps(training, 0, 6, run.losses);
    run.state.add(training);
    world->barrier("the end")->wait();
  });
}

}  // namespace

TEST_CASE("Replicas train with the bits of flat ranks whose sums are in groups of a replica's ranks") {
  const TemporaryFolder folder;
  const std::string precisions[] = {"fp32", "bf16", "fp16"};
  const std::vector<StateCase> all = all_state_cases();
  const std::vector<StateCase> cases = {all[0], all[2], in_files(all[0], folder / "states"), all[8], all[9]};
  for (const auto& [stage_below, precision, replicas, number] : settings(3, 3, 2, cases.size())) {
    const int stage = 1 + stage_below, replicate = replicas == 0 ? 2 : 4;
    // At stages 2 and 3 the replicas sum once what flat ranks sum in each micro-step.
    const int accumulation = stage == 1 ? 2 : 1;
    const StateCase& how = cases[static_cast<size_t>(number)];
    CAPTURE(stage, precisions[precision], replicate, how.name);
    ReplicasRun flat, replicated;
    train_replicas(flat, how, stage, precisions[precision], accumulation, replicate, true);
    train_replicas(replicated, how, stage, precisions[precision], accumulation, replicate, false);
    CHECK(flat.losses == replicated.losses);
    check_same(flat.state.whole(), replicated.state.whole());
  }
}

TEST_CASE("Replicas that accumulate at stages 2 and 3 sum once a step, and train as flat ranks do") {
  const int stage = GENERATE(2, 3);
  CAPTURE(stage);
  const StateCase sgd = all_state_cases()[3];
  ReplicasRun flat, replicated;
  train_replicas(flat, sgd, stage, "fp32", 3, 2, true);
  train_replicas(replicated, sgd, stage, "fp32", 3, 2, false);
  const CollectedState::Whole& expected = flat.state.whole();
  REQUIRE(expected.size() == replicated.state.whole().size());
  for (const auto& [name, tensor] : replicated.state.whole()) {
    INFO(name);
    CHECK(at::allclose(tensor, expected.at(name), 1e-5, 1e-7));
  }
}

TEST_CASE("Between replicas go gradients only, once a step; parameters stay inside of them") {
  const int stage = GENERATE(1, 2, 3);
  CAPTURE(stage);
  run_ranks(
      kReplicaRanks,
      [&](std::shared_ptr<Communicator> world) {
        constexpr int kAccumulation = 3;
        StateTraining training(all_state_cases()[0], stage, "fp32", world, with_replicas(2, kAccumulation));
        const Mesh& mesh = training.state->mesh;
        expect(mesh.shards().world_size() == 2 && mesh.replicas().world_size() == 2, "two by two ranks");
        int64_t slices = 0;
        for (int bucket = 0; bucket < training.state->buckets.trained_count(); ++bucket)
          slices += training.state->store.layout(bucket).slice_numel;
        const auto take_step = [&](int number) {
          for (int micro = 0; micro < kAccumulation; ++micro) training.step(number * kAccumulation + micro);
          training.engine->synchronize();
        };
        take_step(0);
        for (Communicator* each : mesh.communicators()) each->volume().reset();
        take_step(1);
        for (const Collective kind :
             {Collective::all_gather, Collective::reduce_scatter, Collective::broadcast}) {
          expect(mesh.replicas().volume().elements(kind) == 0, "between replicas go sums of gradients only");
          expect(mesh.data().volume().elements(kind) == 0, "no collective of slices is among all data ranks");
        }
        // An all-reduce among N ranks counts as a reduce-scatter and an all-gather: 2 (N - 1) / N.
        expect(mesh.replicas().volume().elements(Collective::all_reduce) == static_cast<double>(slices),
               "each element of the slices once");
      },
      std::chrono::seconds(60), /*shares_memory=*/false);
}

TEST_CASE("All replicas begin with the values of rank 0") {
  const int stage = GENERATE(1, 2, 3);
  CAPTURE(stage);
  std::vector<std::vector<at::Tensor>> trained(2);
  for (const int replicate : {1, 2}) {
    run_ranks(kReplicaRanks, [&](std::shared_ptr<Communicator> world) {
      world->set_sum_group(2);
      const int rank = world->rank();
      Net model;
      fill(*model, rank == 0 ? 100 : 7 + rank);
      const MeshSizes sizes{.data = kReplicaRanks, .replicate = replicate};
      Engine engine = make_engine_in(*model, mesh_config(stage, "", 1, 0.1), world, sizes);
      for (int step = 0; step < 2; ++step) {
        engine.backward(loss_of_net(model, step, 0, rank));
        engine.step();
      }
      const auto values = copies_of(*model);
      if (rank == kReplicaRanks - 1) trained[static_cast<size_t>(replicate - 1)] = values;
      world->barrier("the end")->wait();
    });
  }
  CHECK_NOTHROW(expect_same(trained[0], trained[1], "values after two steps"));
}

TEST_CASE("A gradient that is not finite in one replica: all skip the step") {
  const int stage = GENERATE(1, 2, 3);
  const int culprit = GENERATE(0, 3);
  CAPTURE(stage, culprit);
  CHECK_NOTHROW(run_ranks(kReplicaRanks, [&](std::shared_ptr<Communicator> world) {
    const int rank = world->rank();
    Net model;
    Engine engine =
        make_engine_in(*model, mesh_config(stage), world, MeshSizes{.data = kReplicaRanks, .replicate = 2});
    for (int step = 0; step < 3; ++step) {
      const double factor = step == 1 && rank == culprit ? std::numeric_limits<double>::infinity() : 0;
      engine.backward(loss_of_net(model, step, 0, rank, factor));
      engine.step();
      expect(engine.was_step_applied() == (step != 1), "which steps are applied");
      if (step == 1) expect(std::isinf(engine.get_global_grad_norm()), "the norm of a skipped step");
    }
  }));
}

TEST_CASE("Checkpoints of replicas are read by flat ranks, and theirs by replicas: the bits go on alike") {
  const TemporaryFolder folder;
  const std::string precisions[] = {"fp32", "bf16"};
  for (const auto& [stage_below, precision, home, saves_flat] : settings(3, 2, 2, 2)) {
    const int stage = 1 + stage_below;
    const StateCase adam = all_state_cases().front();
    const fs::path saved = folder / std::to_string(stage) / precisions[precision] / std::to_string(home) /
                           std::to_string(saves_flat);
    const auto replicas_of = [&](bool is_flat) { return with_replicas(is_flat ? 1 : 2); };
    CAPTURE(stage, precisions[precision], home, saves_flat);
    ReplicasRun went_on, loaded;
    const auto run = [&](ReplicasRun& out, bool loads) {
      const StateCase how = home == 0 ? adam : in_files(adam, folder / (loads ? "b" : "a"));
      run_ranks(kReplicaRanks, [&](std::shared_ptr<Communicator> world) {
        world->set_sum_group(2);
        StateTraining training(how, stage, precisions[precision], world,
                               replicas_of((saves_flat == 1) != loads));
        if (loads) {
          training.engine->load_checkpoint(saved);
        } else {
          std::vector<float> before;
          take_steps(training, 0, 2, before);
          training.engine->save_checkpoint(saved);
        }
        take_steps(training, 2, 3, out.losses);
        out.state.add(training);
        training.engine->wait_for_checkpoint();
        world->barrier("the end")->wait();
      });
    };
    run(went_on, false);
    run(loaded, true);
    CHECK(went_on.losses == loaded.losses);
    check_same(went_on.state.whole(), loaded.state.whole());
  }
}

TEST_CASE("A checkpoint says in which groups its run added sums; another order is told") {
  const TemporaryFolder folder;
  const auto save_or_load = [&](int sum_group, int replicate, bool saves) {
    StderrCapture capture;
    run_ranks(kReplicaRanks, [&](std::shared_ptr<Communicator> world) {
      world->set_sum_group(sum_group);
      StateTraining training(all_state_cases().front(), 1, "fp32", world, with_replicas(replicate));
      if (saves) {
        training.step(0);
        training.engine->save_checkpoint(folder / "a", "", {.asynchronous = false});
      } else {
        training.engine->load_checkpoint(folder / "a");
      }
      world->barrier("the end")->wait();
    });
    return capture.text();
  };
  save_or_load(2, 1, true);
  const auto tells = Contains("added sums over ranks in groups of 2 ranks");
  CHECK_THAT(save_or_load(2, 1, false), !tells);
  CHECK_THAT(save_or_load(0, 2, false), !tells);
  CHECK_THAT(save_or_load(0, 1, false), tells && Contains("this one adds them in one order"));
  CHECK_THAT(save_or_load(0, 4, false), tells && Contains("this one adds them in groups of 1 ranks"));
}

TEST_CASE("Gradients that a program reads and writes are those of all replicas") {
  const int stage = GENERATE(1, 3);
  CAPTURE(stage);
  std::vector<std::vector<at::Tensor>> seen(2);
  for (const int replicate : {1, 2}) {
    run_ranks(kReplicaRanks, [&](std::shared_ptr<Communicator> world) {
      const int rank = world->rank();
      Net model;
      const MeshSizes sizes{.data = kReplicaRanks, .replicate = replicate};
      Engine engine = make_engine_in(*model, mesh_config(stage, "", 1, 0, kOptimizers[1]), world, sizes);
      engine.backward(loss_of_net(model, 0, 0, rank));
      ParameterStates states(engine);
      const at::Tensor read = states.read_gradient(model->first->weight);
      states.write_gradient(model->first->weight, at::full_like(read, 0.25));
      const at::Tensor again = states.read_gradient(model->first->weight);
      engine.step();
      const at::Tensor value = model->first->weight.detach().clone();
      if (rank == 1) seen[static_cast<size_t>(replicate - 1)] = {read, again, value};
      world->barrier("the end")->wait();
    });
  }
  for (size_t index = 0; index < 3; ++index) {
    CAPTURE(index);
    CHECK(at::allclose(seen[0][index], seen[1][index], 1e-6, 1e-7));
  }
  CHECK(at::equal(seen[1][1], at::full_like(seen[1][1], 0.25)));
}

TEST_CASE("Replicas that the program has let drift apart are told at a save") {
  const int stage = GENERATE(1, 3);
  const TemporaryFolder folder;
  run_ranks(kReplicaRanks, [&](std::shared_ptr<Communicator> world) {
    StateTraining training(all_state_cases().front(), stage, "bf16", world, with_replicas(2));
    training.step(0);
    training.engine->save_checkpoint(folder / "a");
    {
      const torch::NoGradGuard no_grad;
      training.model->last.mul_(world->rank() < 2 ? 1.5 : 0.5);
    }
    expect_throws([&] { training.engine->save_checkpoint(folder / "b"); },
                  "replica 1 has other values of bucket", "a save of replicas that differ");
    training.engine->wait_for_checkpoint();
    world->barrier("the end")->wait();
  });
}

TEST_CASE("A gradient that the program writes may be larger than the dtype of collectives holds") {
  run_ranks(kReplicaRanks, [&](std::shared_ptr<Communicator> world) {
    StateTraining training(all_state_cases()[3], 2, "fp16", world, with_replicas(2));
    training.engine->backward(training.model->loss(values({1, 61}, 5).to(at::kHalf)));
    ParameterStates states(*training.engine);
    const at::Tensor large = at::full({61, 67}, 60000.0F);  // times the loss scale: infinity in fp16
    states.write_gradient(training.model->first, large);
    expect(at::equal(states.read_gradient(training.model->first), large), "the gradient is read back");
    training.engine->step();
    expect(training.engine->was_step_applied(), "the step is applied");
    world->barrier("the end")->wait();
  });
}

TEST_CASE("What replicas cannot do is refused with the remedy") {
  const auto make = [](const std::string& config, MeshSizes sizes) {
    run_ranks(kReplicaRanks, [&](std::shared_ptr<Communicator> world) {
      Net model;
      make_engine_in(*model, config, world, sizes);
    });
  };
  const MeshSizes two{.data = kReplicaRanks, .replicate = 2};
  CHECK_THROWS_WITH(make(mesh_config(0), two), Contains("zerorun.mesh.replicate") &&
                                                   Contains("set zero_optimization.stage to 1, 2 or 3"));
  CHECK_THROWS_WITH(make(mesh_config(2), MeshSizes{.data = kReplicaRanks, .replicate = 3}),
                    Contains("must be a multiple of replicate"));
  for (const char* of_file :
       {R"("zero_optimization": {"stage": 0})",
        R"("zero_optimization": {"stage": 2}, "checkpoint": {"use_node_local_storage": true})"}) {
    const std::string text =
        std::string(R"({"train_micro_batch_size_per_gpu": 1, "zerorun": {"mesh": {"replicate": 2}}, )") +
        of_file + "}";
    CHECK_THROWS_WITH(parse_config(text, "test config", 4), Contains("zerorun.mesh.replicate"));
  }
  std::string local = mesh_config(2);
  local.insert(1, R"("checkpoint": {"use_node_local_storage": true}, )");
  CHECK_THROWS_WITH(make(local, two), Contains("use_node_local_storage") && Contains("all hosts share"));
  CHECK_THROWS_WITH(
      parse_config(R"({"train_micro_batch_size_per_gpu": 1, "zerorun": {"mesh": {"replicate": 3}}})",
                   "test config", 4),
      Contains("zerorun.mesh.replicate") && Contains("a divisor of the number of data ranks, 4"));
  const TemporaryFolder folder;
  run_ranks(kReplicaRanks, [&](std::shared_ptr<Communicator> world) {
    Net model;
    Engine engine = make_engine_in(*model, mesh_config(3, "", 2), world, two);
    engine.backward(loss_of_net(model, 0, 0, world->rank()));
    engine.step();
    expect_throws([&] { engine.save_checkpoint(folder / "states"); }, "after a step() that completes one",
                  "a save within a window");
    world->barrier("the end")->wait();
  });
}

TEST_CASE("Replicas of pipelines and tensor groups: data ranks of each group have replicas of their own") {
  const int stage = GENERATE(1, 3);
  for (const MeshSizes& plain : {MeshSizes{4, 2, 1}, MeshSizes{4, 1, 2}}) {
    CAPTURE(stage, describe(plain));
    std::vector<std::vector<at::Tensor>> trained(2);
    for (const int replicate : {1, 2}) {
      CHECK_NOTHROW(run_ranks(ranks_of(plain), [&](std::shared_ptr<Communicator> world) {
        MeshSizes sizes = plain;
        sizes.replicate = replicate;
        // Of the data group of this rank; each has replicas of two data ranks.
        world->set_sum_group(replicate == 1 && plain.tensor == 2 ? 4 : 2);
        Net model;
        Engine engine = make_engine_in(*model, mesh_config(stage, "", 1, 0), world, sizes);
        const int data = engine.mesh().data().rank();
        for (int step = 0; step < 2; ++step) {
          engine.backward(loss_of_net(model, step, 0, data));
          engine.step();
        }
        const auto values = copies_of(*model);
        if (world->rank() == world->world_size() - 1) trained[static_cast<size_t>(replicate - 1)] = values;
        world->barrier("the end")->wait();
      }));
    }
    CHECK_NOTHROW(expect_same(trained[0], trained[1], "values after two steps"));
  }
}

}  // namespace zerorun::testing
