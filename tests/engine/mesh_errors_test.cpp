// Tests that all ranks of a job skip steps and fail together, whichever data group the cause is in.
#include <catch2/catch.hpp>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/mesh_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stderr_capture.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE(
    "A value that is not finite in one data group: all groups skip the step, and the log names its rank") {
  const int stage = GENERATE(0, 1, 2, 3);
  struct Case {
    MeshSizes mesh;
    int culprit;
    const char* place;
  };
  const Case given = GENERATE(Case{{2, 2, 1}, 3, "data 1, tensor 1"}, Case{{2, 2, 1}, 2, "data 1, tensor 0"},
                              Case{{1, 2, 2}, 1, "tensor 1, pipeline 0"});
  const MeshSizes mesh = given.mesh;
  const int culprit = given.culprit;
  const int precision = GENERATE(0, 1, 2);
  CAPTURE(stage, describe(mesh), culprit, precision);
  StderrCapture capture;
  CHECK_NOTHROW(run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model;
    const char* const fixed = R"("fp16": {"enabled": true, "initial_scale_power": 6, "hysteresis": 1},)";
    Engine engine =
        make_engine_in(*model, mesh_config(stage, precision == 2 ? fixed : kPrecisions[precision]),
                       std::move(communicator), mesh);
    for (int step = 0; step < 3; ++step) {
      const auto before = copies_of(*model);
      engine.backward(loss_of_net(model, step, 0, rank, step == 1 && rank == culprit ? kInfinity : 0));
      engine.step();
      expect(engine.was_step_applied() == (step != 1), "which steps are applied");
      if (step == 1) testing::expect_same(copies_of(*model), before, "a skipped step");
      if (step == 1) expect(engine.get_global_grad_norm() == kInfinity, "the norm of a skipped step");
    }
    expect(engine.skipped_steps() == 1, "the count of skipped steps");
    if (precision == 2) expect(engine.loss_scale() == 32, "the loss scale falls on all ranks");
  }));
  const std::string log = capture.text();
  CHECK_THAT(log, Contains("step 2 skipped: the gradient of parameter branch.bias on rank " +
                           std::to_string(culprit) + " (" + given.place + ") is not finite"));
  CHECK(log.find("skipped: ") == log.rfind("skipped: "));
}

TEST_CASE("Data groups may have other models: each names its own parameters to all") {
  const int stage = GENERATE(0, 1, 2, 3);
  const bool overflows_in_sum = GENERATE(false, true);
  CAPTURE(stage, overflows_in_sum);
  StderrCapture capture;
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    const MeshSizes mesh{.data = 2, .tensor = 1, .pipeline = 2};
    Net stage_0;
    torch::nn::Sequential stage_1(torch::nn::Linear(3, 4), torch::nn::Linear(4, 60),
                                  torch::nn::Linear(60, 1));
    const bool is_first = rank < 2;
    torch::nn::Module& model = is_first ? *stage_0 : static_cast<torch::nn::Module&>(*stage_1);
    Engine engine = make_engine_in(model, mesh_config(stage), std::move(communicator), mesh);
    const double largest = std::numeric_limits<float>::max();
    for (int step = 0; step < 2; ++step) {
      at::Tensor loss = is_first ? loss_of_net(stage_0, step, 0, rank)
                                 : stage_1->forward(torch::full({1, 3}, 0.1 * (rank + 1))).sum();
      // Each gradient is finite, but the sum over the two ranks is not.
      const double factor = overflows_in_sum ? 0.75 * largest : rank == 3 ? kInfinity : 0.0;
      const auto& last = stage_1[2]->as<torch::nn::Linear>()->bias;
      if (step == 1 && !is_first) loss = loss + (last * factor).sum();
      engine.backward(loss);
      engine.step();
    }
    expect(!engine.was_step_applied(), "the step is skipped");
  }));
  const std::string log = capture.text();
  if (overflows_in_sum) {
    CHECK_THAT(log, Contains("gradients of parameter 2.bias, found on rank") &&
                        Contains("is not finite, though each gradient is"));
  } else {
    CHECK_THAT(log,
               Contains("the gradient of parameter 2.bias on rank 3 (data 1, pipeline 1) is not finite"));
  }
}

TEST_CASE("An error in one data group is one of all ranks, and names the rank") {
  const MeshSizes mesh{.data = 2, .tensor = 2, .pipeline = 1};
  std::mutex mutex;
  std::vector<std::string> errors;
  const auto note = [&](const std::string& error) {
    const std::lock_guard lock(mutex);
    errors.push_back(error);
  };
  const auto check_all = [&](const std::string& part) {
    REQUIRE(errors.size() == 4);
    for (const std::string& error : errors) {
      CHECK(error == errors[0]);
      CHECK_THAT(error, Contains(part));
    }
  };
  const auto user_error = [&](const auto& action) {
    try {
      action();
    } catch (const UserError& error) {
      note(error.what());
    }
  };
  SECTION("a model that differs within a group") {
    CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
      torch::nn::Linear model(3, communicator->rank() == 3 ? 5 : 4);
      user_error([&] { make_engine_in(*model, mesh_config(1), communicator, mesh); });
    }));
    check_all("rank 3 has another model or another config than rank 1: rank 1 has weight Float[4, 3]");
  }
  SECTION("settings that differ between groups") {
    CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
      torch::nn::Linear model(3, 4);
      const std::string config = mesh_config(1, "", 1, communicator->rank() % 2);
      user_error([&] { make_engine_in(*model, config, communicator, mesh); });
    }));
    check_all("rank 1 has another model or another config than rank 0: their configs");
  }
  SECTION("gradients dropped on one rank of one group") {
    const int stage = GENERATE(1, 3);
    CAPTURE(stage);
    CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
      const int rank = communicator->rank();
      Net model;
      Engine engine = make_engine_in(*model, mesh_config(stage, "", 2), communicator, mesh);
      engine.backward(loss_of_net(model, 0, 0, rank));
      engine.step();
      if (rank == 1) engine.zero_grad();
      engine.backward(loss_of_net(model, 0, 1, rank));
      user_error([&] { engine.step(); });
    }));
    check_all("some ranks have dropped gradients since the last optimizer step");
  }
  SECTION("a call that one rank may not make now") {
    CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
      const int rank = communicator->rank();
      Net model;
      Engine engine = make_engine_in(*model, mesh_config(1), communicator, mesh);
      std::optional<GatheredParameters> scope;
      if (rank % 2 == 1) scope.emplace(engine, std::vector<at::Tensor>{model->first->weight});
      user_error([&] { engine.offload_states(); });
    }));
    check_all("rank 1: engine.offload_states() inside a GatheredParameters scope");
  }
  SECTION("checkpoints and models") {
    const int call = GENERATE(0, 1, 2);
    CAPTURE(call);
    CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      Engine engine = make_engine_in(*model, mesh_config(1), communicator, mesh);
      user_error([&] {
        if (call == 0) engine.save_checkpoint("/nowhere");
        if (call == 1) engine.load_checkpoint("/nowhere");
        if (call == 2) engine.save_16bit_model("/nowhere");
      });
    }));
    check_all("() on a mesh of data 2 x tensor 2 x pipeline 1");
  }
}

TEST_CASE("A rank of one data group that ends: the ranks of all groups end, and name it") {
  std::mutex mutex;
  std::vector<std::string> errors;
  const auto run = [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model;
    Engine engine =
        make_engine_in(*model, mesh_config(1), communicator, {.data = 2, .tensor = 2, .pipeline = 1});
    if (rank == 3) return;
    try {
      engine.backward(loss_of_net(model, 0, 0, rank));
      engine.step();
    } catch (const CommError& error) {
      const std::lock_guard lock(mutex);
      errors.push_back(std::to_string(rank) + " " + error.what());
    }
  };
  CHECK_NOTHROW(run_ranks(4, run, std::chrono::seconds(1)));
  CHECK(errors.size() == 3);
  for (const std::string& error : errors) {
    CAPTURE(error);
    if (error[0] == '1') CHECK_THAT(error, Contains("data group at tensor 1 (ranks 1, 3)"));
    CHECK_THAT(error, Contains("3"));
  }
}

TEST_CASE("A mesh that does not fit is refused on all ranks") {
  const auto refuses = [](const MeshSizes& mesh, const Config& config, const std::string& part) {
    CAPTURE(part);
    CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      InitializeOptions options;
      options.communicator = std::move(communicator);
      options.mesh = mesh;
      options.tensor_plan = TensorPlan();
      expect_throws([&] { initialize(*model, config, options); }, part, "initialize()");
    }));
  };
  const Config of_4 = parse_config(mesh_config(1), "test config", 4);
  refuses({.data = 3, .tensor = 1, .pipeline = 1}, of_4, "does not fit 4 ranks");
  refuses({.data = 0, .tensor = 3, .pipeline = 1}, of_4, "does not fit 4 ranks");
  refuses({.data = 2, .tensor = 2, .pipeline = 1}, of_4,
          "2 data ranks of a mesh of data 2 x tensor 2 x pipeline 1");
  const Config other =
      parse_config(mesh_config(1), "test config",
                   {.world_size = 4, .mesh = MeshSizes{.data = 2, .tensor = 1, .pipeline = 2}});
  refuses(
      {.data = 2, .tensor = 2, .pipeline = 1}, other,
      "InitializeOptions::mesh is data 2 x tensor 2 x pipeline 1, and the config's zerorun.mesh is data 2 x "
      "tensor 1 x pipeline 2");
}

}  // namespace zerorun::testing
