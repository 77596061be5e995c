// Tests every optimizer that a config can name: all stages give the same bits, and parameter groups can have
// their own hyperparameters.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;
using torch::optim::OptimizerParamGroup;

constexpr const char* kOptimizers[] = {
    R"({"type": "Adam", "params": {"lr": 0.001, "weight_decay": 0.1}})",
    R"({"type": "Adam", "params": {"lr": 0.001, "weight_decay": 0.1, "adam_w_mode": false}})",
    R"({"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0.1, "bias_correction": false}})",
    R"({"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0.1, "betas": [0.5, 0.6], "amsgrad": true}})",
    R"({"type": "Adam", "params": {"lr": 0.001, "betas": [0.5, 0.6], "amsgrad": true, "torch_adam": true}})",
    R"({"type": "SGD", "params": {"lr": 0.05, "weight_decay": 0.1}})",
    R"({"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "dampening": 0.5}})",
    R"({"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "nesterov": true, "weight_decay": 0.1}})",
    R"({"type": "Adagrad", "params": {"lr": 0.01}})",
    R"({"type": "Adagrad", "params": {"lr": 0.01, "lr_decay": 0.1, "initial_accumulator_value": 0.01,
                                      "weight_decay": 0.1}})",
    R"({"type": "RMSprop", "params": {"lr": 0.001, "weight_decay": 0.1}})",
    R"({"type": "RMSprop", "params": {"lr": 0.001, "centered": true}})",
    R"({"type": "RMSprop", "params": {"lr": 0.001, "momentum": 0.9, "alpha": 0.9}})",
    R"({"type": "RMSprop", "params": {"lr": 0.001, "centered": true, "momentum": 0.9}})",
    R"({"type": "Lion", "params": {"lr": 0.001, "weight_decay": 0.1}})",
};

std::string config(const std::string& optimizer, int stage, const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": 2, "optimizer": )" + optimizer + more +
         R"(, "zero_optimization": {"stage": )" + std::to_string(stage) +
         R"(, "stage3_param_persistence_threshold": 100}})";
}

// Net's trainable parameters in two groups: the weights, and all others.
struct Groups {
  std::vector<at::Tensor> weights, others;

  explicit Groups(Net& model) {
    for (const at::Tensor& parameter : model->parameters()) {
      if (parameter.requires_grad()) (parameter.dim() > 1 ? weights : others).push_back(parameter);
    }
  }
};

// Net's parameters after training in one process with a torch::optim optimizer of two groups. The weights'
// group has `options`, the other group has `defaults`.
template <typename Optimizer, typename Options>
std::vector<at::Tensor> plain(const Options& defaults, const Options& options) {
  Net model;
  const Groups groups(model);
  std::vector<OptimizerParamGroup> both;
  both.emplace_back(groups.others);
  both.emplace_back(groups.weights, std::make_unique<Options>(options));
  Optimizer optimizer(both, defaults);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < 2; ++rank) {
      (model->forward(sample(step, 0, rank), true).square().sum() / 2).backward();
    }
    optimizer.step();
  }
  return copies_of(*model);
}

// CHECKs that training with the config's `optimizer` gives `expected` at every stage. `weights` has the
// hyperparameters of the weights' group.
void check_groups(const std::string& optimizer, ParameterGroup weights,
                  const std::vector<at::Tensor>& expected) {
  for (int stage : {0, 1, 2, 3}) {
    INFO(optimizer << " at stage " << stage);
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      const Groups groups(model);
      InitializeOptions options;
      options.parameter_groups = {{.parameters = groups.others, .lr = {}, .weight_decay = {}, .betas = {}},
                                  weights};
      options.parameter_groups[1].parameters = groups.weights;
      Engine engine =
          make_engine(*model, config(optimizer, stage, R"(, "gradient_clipping": 0)"), communicator, options);
      for (int step = 0; step < 5; ++step) {
        engine.backward(model->forward(sample(step, 0, communicator->rank()), true).square().sum());
        engine.step();
      }
      check_close(*model, expected);
    });
  }
}

}  // namespace

TEST_CASE("Every optimizer gives the same bits at every stage") {
  for (const auto& [type, world, narrow] : settings(std::size(kOptimizers), 2, 2)) {
    const std::string more = narrow == 1 ? R"(, "bf16": {"enabled": true})" : "";
    CAPTURE(kOptimizers[type], world, more);
    const auto train = [&, type = type, world = world](int stage) {
      return train_tiny_gpt2(config(kOptimizers[type], stage, more), {.world_size = 2 + world, .steps = 3});
    };
    const RunResult reference = train(0);
    CHECK(reference.mean_loss(2) < reference.mean_loss(0));
    for (int stage : {1, 2, 3}) {
      CAPTURE(stage);
      check_same_bits(train(stage), reference);
    }
  }
}

TEST_CASE("Parameter groups with their own settings train as torch::optim's do") {
  using namespace torch::optim;
  const ParameterGroup decayed{.parameters = {}, .lr = 0.02, .weight_decay = 0.1, .betas = {}, .eps = {}};
  check_groups(R"({"type": "AdamW", "params": {"lr": 0.005, "weight_decay": 0.3, "eps": 1e-6}})",
               {.parameters = {}, .lr = 0.02, .weight_decay = 0, .betas = {{0.7, 0.8}}, .eps = 1e-3},
               plain<AdamW>(AdamWOptions(0.005).weight_decay(0.3).eps(1e-6),
                            AdamWOptions(0.02).weight_decay(0).betas({0.7, 0.8}).eps(1e-3)));
  check_groups(
      R"({"type": "Adam", "params": {"lr": 0.005, "adam_w_mode": false, "amsgrad": true, "eps": 1e-6}})",
      {.parameters = {}, .lr = {}, .weight_decay = 0.1, .betas = {{0.5, 0.6}}, .eps = {}},
      plain<Adam>(AdamOptions(0.005).amsgrad(true).eps(1e-6),
                  AdamOptions(0.005).amsgrad(true).eps(1e-6).weight_decay(0.1).betas({0.5, 0.6})));
  check_groups(R"({"type": "SGD", "params": {"lr": 0.005, "momentum": 0.9}})", decayed,
               plain<SGD>(SGDOptions(0.005).momentum(0.9), SGDOptions(0.02).momentum(0.9).weight_decay(0.1)));
  check_groups(R"({"type": "Adagrad", "params": {"lr": 0.005, "lr_decay": 0.1}})", decayed,
               plain<Adagrad>(AdagradOptions(0.005).lr_decay(0.1),
                              AdagradOptions(0.02).lr_decay(0.1).weight_decay(0.1)));
  check_groups(
      R"({"type": "RMSprop", "params": {"lr": 0.001, "centered": true, "momentum": 0.5}})",
      {.parameters = {}, .lr = {}, .weight_decay = 0.1, .betas = {}, .eps = 1e-3},
      plain<RMSprop>(RMSpropOptions(0.001).centered(true).momentum(0.5),
                     RMSpropOptions(0.001).centered(true).momentum(0.5).weight_decay(0.1).eps(1e-3)));
}

TEST_CASE("A parameter group with an option that its optimizer lacks is refused") {
  struct Case {
    std::string type;
    ParameterGroup group;
    std::string names;
  };
  const ParameterGroup betas{
      .parameters = {}, .lr = {}, .weight_decay = {}, .betas = {{0.9, 0.99}}, .eps = {}};
  const ParameterGroup eps{.parameters = {}, .lr = {}, .weight_decay = {}, .betas = {}, .eps = 1e-3};
  const std::vector<Case> cases = {{"SGD", betas, "betas"},
                                   {"SGD", eps, "eps"},
                                   {"Adagrad", betas, "betas"},
                                   {"RMSprop", betas, "betas"},
                                   {"Lion", eps, "eps"}};
  for (const auto& [type, group, name] : cases) {
    const std::string text = config(R"({"type": ")" + type + "\"}", 2);
    run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      const Groups groups(model);
      InitializeOptions options;
      options.parameter_groups = {group,
                                  {.parameters = groups.others, .lr = {}, .weight_decay = {}, .betas = {}}};
      options.parameter_groups[0].parameters = groups.weights;
      CHECK_THROWS_WITH(make_engine(*model, text, communicator, options), Contains(name) && Contains(type));
    });
  }
}

}  // namespace zerorun::testing
