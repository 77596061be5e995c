// Tests that trainings on several hosts, over a communicator of two levels, have the bits of a flat training
// whose sums are added in the same groups of ranks.
#include "tests/comm/two_levels.h"

#include <torch/torch.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "config/config.h"
#include "engine/engine.h"
#include "tests/engine/collected_state.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

struct HostsRun {
  CollectedState state;
  std::vector<float> losses;        // of rank 0
  int64_t bytes_of_parameters = 0;  // of rank 0
};

// Three steps on four ranks; `levels`: on two hosts, otherwise flat with sums in groups of `sum_group` ranks.
// `shares`: the ranks of a host share memory. After the first step the program writes to a parameter.
void train_on_hosts(HostsRun& trained, const StateCase& how, int stage, const std::string& precision,
                    int accumulation, bool levels, int sum_group, bool shares = false) {
  const std::string more = R"(, "gradient_accumulation_steps": )" + std::to_string(accumulation);
  run_ranks(
      4,
      [&](std::shared_ptr<Communicator> world) {
        const auto communicator = levels ? in_two_levels(world, 2) : world;
        communicator->set_sum_group(sum_group);  // StateTraining makes no mesh from the config
        StateTraining training(how, stage, precision, communicator, more);
        for (int step = 0; step < 3 * accumulation; ++step) {
          const float loss = training.step(step);
          if (communicator->rank() == 0) trained.losses.push_back(loss);
          if (step + 1 != accumulation) continue;
          const at::NoGradGuard no_grad;
          training.model->last.mul_(1.5);
        }
        trained.state.add(training);
        if (communicator->rank() == 0)
          trained.bytes_of_parameters = training.engine->bytes_by_category().parameters;
        communicator->barrier("the end")->wait();
      },
      std::chrono::seconds(60), shares);
}

bool have_equal_states(const CollectedState::Whole& a, const CollectedState::Whole& b) {
  for (const auto& [name, tensor] : a) {
    if (!at::equal(tensor, b.at(name))) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("Trainings on two levels have the bits of flat ones with the same groups of sums") {
  const StateCase how = all_state_cases().front();
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE("fp32", "bf16", "fp16");
  const int accumulation = GENERATE(1, 2);
  CAPTURE(stage, precision, accumulation);
  HostsRun flat, two_levels, in_one_order;
  train_on_hosts(flat, how, stage, precision, accumulation, false, 2);
  train_on_hosts(two_levels, how, stage, precision, accumulation, true, 0);
  CHECK(flat.losses == two_levels.losses);
  check_same(flat.state.whole(), two_levels.state.whole());
  HostsRun on_each_host;
  train_on_hosts(on_each_host, how, stage, precision, accumulation, true, 0, true);
  CHECK(flat.losses == on_each_host.losses);
  check_same(flat.state.whole(), on_each_host.state.whole());
  // Whole parameters are once on each host, of two ranks each.
  const int copies = stage == 1 || stage == 2 ? 2 : 1;
  CHECK(copies * on_each_host.bytes_of_parameters == flat.bytes_of_parameters);
  if (precision != "fp32") return;
  train_on_hosts(in_one_order, how, stage, precision, accumulation, false, 0);
  CHECK_FALSE(have_equal_states(flat.state.whole(), in_one_order.state.whole()));
}

TEST_CASE("zerorun.sum_group gives the order of sums, and must fit to the hosts") {
  const auto config_of = [](const std::string& more) {
    return parse_config(R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
      "optimizer": {"type": "SGD", "params": {"lr": 1.0}}, "zero_optimization": {"stage": 1}, "zerorun": {)" +
                            more + "}}",
                        "sums", 4);
  };
  // A weight's gradients are 1 and three times 2^-24: (1 + 2^-24) + (2^-24 + 2^-24) is more than
  // ((1 + 2^-24) + 2^-24) + 2^-24, where each sum is rounded to 1.
  const auto updated = [&](const std::string& more, bool levels) {
    float value = 0;
    run_ranks(4, [&](std::shared_ptr<Communicator> world) {
      const auto communicator = levels ? in_two_levels(world, 2) : world;
      torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
      {
        const torch::NoGradGuard no_grad;
        model->weight.zero_();
      }
      InitializeOptions options;
      options.communicator = communicator;
      Engine engine = initialize(model_of(*model), config_of(more), std::move(options));
      constexpr float kInputs[] = {1, 0x1p-24F, 0x1p-24F, 0x1p-24F};
      engine.backward(model(at::full({1, 1}, kInputs[world->rank()])).sum());
      engine.step();
      engine.synchronize();
      if (world->rank() == 0) value = model->weight.item<float>();
      communicator->barrier("the end")->wait();
    });
    return value * -4;  // the sum of the gradients
  };
  const float in_pairs = 1 + 0x1p-23F;  // (1 + 2^-24) is 1, and 2^-24 + 2^-24 is 2^-23
  CHECK(updated("", false) == 1);
  CHECK(updated(R"("sum_group": 4)", false) == 1);
  CHECK(updated(R"("sum_group": 1)", false) == 1);
  CHECK(updated(R"("sum_group": 2)", false) == in_pairs);
  CHECK(updated("", true) == in_pairs);
  CHECK(updated(R"("sum_group": 2)", true) == in_pairs);
  CHECK_THROWS_WITH(updated(R"("sum_group": 3)", true),
                    Catch::Contains("zerorun.sum_group") && Catch::Contains("set it to 2"));
}

TEST_CASE("Meshes over two levels train as flat ones: data groups across hosts, and within them") {
  std::atomic<int> compared = 0;
  run_ranks(4, [&](std::shared_ptr<Communicator> world) {
    for (const MeshSizes& sizes : {MeshSizes{.data = 2, .tensor = 2}, MeshSizes{.data = 4}}) {
      const auto trained_weights = [&](const std::shared_ptr<Communicator>& communicator) {
        communicator->set_sum_group(2);
        torch::nn::Linear model(8, 8);
        {
          const torch::NoGradGuard no_grad;  // rank-threads share the generator
          model->weight.copy_(at::linspace(-1, 1, 64).view({8, 8}));
          model->bias.zero_();
        }
        InitializeOptions options;
        options.communicator = communicator;
        options.mesh = sizes;
        options.tensor_plan.emplace();  // tensor ranks have the model whole
        Engine engine = initialize(model_of(*model),
                                   parse_config(R"({"train_micro_batch_size_per_gpu": 1,
              "optimizer": {"type": "SGD", "params": {"lr": 0.01}}, "zero_optimization": {"stage": 2}, "zerorun": {"sum_group": 2}})",
                                                "mesh", {.world_size = 4, .mesh = sizes}),
                                   std::move(options));
        engine.backward(
            model(at::full({1, 8}, 1.0F + static_cast<float>(world->rank() / sizes.tensor))).pow(2).sum());
        engine.step();
        engine.synchronize();
        return model->weight.detach().clone();
      };
      expect(at::equal(trained_weights(world), trained_weights(in_two_levels(world, 2))),
             "weights after a step");
      ++compared;
    }
  });
  CHECK(compared == 8);
}

}  // namespace zerorun::testing
