// Tests the calls that the engine refuses with a named error, and its errors if ranks disagree or a rank is
// missing.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/engine/net.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {

using Catch::Matchers::Contains;
using torch::nn::Linear;

TEST_CASE("Calls that step() and backward() refuse") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, sgd_config(1), communicator);
    auto loss = [&] { return model->forward(sample(0, 0, 0), true).sum(); };
    CHECK_THROWS_WITH(engine.step(), Contains("without an earlier backward"));
    CHECK_THROWS_WITH(engine.backward(torch::ones({3}, torch::requires_grad())), Contains("3 elements"));
    CHECK_THROWS_WITH(engine.backward(torch::ones({})), Contains("does not require grad"));

    SECTION("a parameter replaced by set_data") {
      model->branch->weight.set_data(torch::zeros({7, 7}));
      engine.backward(loss());
      CHECK_THROWS_WITH(engine.step(), Contains("branch.weight") && Contains("left its bucket"));
    }
    SECTION("a parameter replaced by a larger one, or an empty one") {
      const int64_t rows = GENERATE(0, 500);
      model->branch->bias.set_data(torch::zeros({rows}));
      engine.backward(model->forward(sample(0, 0, 0), false).sum());
      CHECK_THROWS_WITH(engine.step(), Contains("branch.bias") && Contains("left its bucket"));
    }
    SECTION("a parameter frozen behind the engine's back") {
      model->last->bias.requires_grad_(false);
      engine.backward(loss());
      CHECK_THROWS_WITH(engine.step(), Contains("last.bias") && Contains("frozen after"));
    }
    SECTION("a parameter converted away and back by Module::to") {
      model->to(torch::kDouble);
      model->to(torch::kFloat);
      engine.backward(loss());
      CHECK_THROWS_WITH(engine.step(), Contains("left its bucket"));
    }
    SECTION("a backward that threw") {
      at::Tensor bad = model->forward(sample(0, 0, 0), true);
      bad.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("in the middle"); });
      CHECK_THROWS_WITH(engine.backward(bad.sum()), Contains("in the middle"));
      CHECK_THROWS_WITH(engine.step(), Contains("the last backward threw, and its gradients were dropped"));
      engine.backward(loss());
      engine.step();
    }
    SECTION("a graph kept over a step would use new weights in silence") {
      at::Tensor kept = loss();
      engine.backward(kept, /*retain_graph=*/true);
      engine.step();
      CHECK_THROWS_WITH(engine.backward(kept), Contains("modified by an inplace operation"));
    }
  });
}

TEST_CASE("Calls of initialize() that are refused by name") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    auto initialize_with = [&](const std::string& config, InitializeOptions options = {}) {
      return make_engine(*model, config, communicator, std::move(options));
    };
    torch::optim::SGD sgd(model->parameters(), 0.1);
    InitializeOptions with_sgd;
    with_sgd.optimizer = &sgd;
    CHECK_THROWS_WITH(initialize_with(no_optimizer_config(1)), Contains("no optimizer"));
    CHECK_THROWS_WITH(initialize_with(sgd_config(1), with_sgd), Contains("both"));

    torch::optim::LBFGS lbfgs(model->parameters(), 0.1);
    InitializeOptions with_lbfgs;
    with_lbfgs.optimizer = &lbfgs;
    CHECK_THROWS_WITH(initialize_with(no_optimizer_config(1), with_lbfgs), Contains("LBFGS"));

    InitializeOptions part;
    part.parameter_groups.push_back(
        {.parameters = {model->first->weight}, .lr = {}, .weight_decay = {}, .betas = {}});
    CHECK_THROWS_WITH(initialize_with(sgd_config(1), part),
                      Contains("first.bias") && Contains("no parameter group"));
    part.parameter_groups.push_back(part.parameter_groups[0]);
    CHECK_THROWS_WITH(initialize_with(sgd_config(1), part), Contains("group 0") && Contains("group 1"));

    InitializeOptions with_betas;
    with_betas.parameter_groups.push_back(
        {.parameters = model->parameters(), .lr = {}, .weight_decay = {}, .betas = {{0.9, 0.99}}});
    CHECK_THROWS_WITH(initialize_with(sgd_config(1), with_betas), Contains("betas"));

    InitializeOptions two_ranks_config;
    two_ranks_config.communicator = communicator;
    CHECK_THROWS_WITH(initialize(*model, parse_config(sgd_config(1), "test config", 2), two_ranks_config),
                      Contains("another world size"));

    model->register_buffer("alias", model->first->weight.detach()[3]);
    CHECK_THROWS_WITH(initialize_with(sgd_config(1)), Contains("first.weight and alias share memory"));
    model->named_buffers()["alias"].set_data(torch::zeros({1}));

    model->last->to(torch::kDouble);
    CHECK_THROWS_WITH(initialize_with(sgd_config(1)), Contains("last.weight") && Contains("Double"));
  });
}

TEST_CASE("Tensors on the meta device are refused by name, with the remedy") {
  struct Model : torch::nn::Module {
    explicit Model(bool parameter_on_meta) {
      register_parameter("weight", at::ones({3}, parameter_on_meta ? at::kMeta : at::kCPU));
      register_buffer("scale", at::ones({3}, at::kMeta));
    }
  };
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    for (const auto& [on_meta, name] :
         {std::pair(true, "parameter weight"), std::pair(false, "buffer scale")}) {
      Model model(on_meta);
      expect_throws([&] { make_engine(model, sgd_config(3), communicator); },
                    std::string(name) + " is on the device \"meta\"", name);
    }
  }));
}

TEST_CASE("Sparse tensors of a model are refused by name, with the remedy") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    const at::Tensor sparse = torch::eye(3).to_sparse();
    for (const std::string kind : {"trained", "frozen", "buffer"}) {
      for (const int stage : {0, 3}) {
        CAPTURE(kind, stage);
        Net model;
        if (kind == "buffer") {
          model->register_buffer("thin", sparse);
        } else {
          model->register_parameter("thin", sparse, /*requires_grad=*/kind == "trained");
        }
        CHECK_THROWS_WITH(make_engine(*model, sgd_config(stage), communicator),
                          Contains("thin is a sparse tensor: make it dense with .to_dense()"));
      }
    }
  });
}

TEST_CASE("Ranks with different models get an error and do not hang") {
  CHECK_THROWS_WITH(
      run_ranks(3,
                [&](std::shared_ptr<Communicator> communicator) {
                  Linear model(communicator->rank() == 2 ? 4 : 5, 3);
                  make_engine(*model, sgd_config(1), communicator);
                }),
      Contains("rank 2 has another model") &&
          Contains("rank 0 has weight Float[3, 5][5, 1] 0 where rank 2 has weight Float[3, 4]"));
  CHECK_THROWS_WITH(run_ranks(2,
                              [&](std::shared_ptr<Communicator> communicator) {
                                torch::nn::Sequential model(Linear(4, 4));
                                if (communicator->rank() == 1) model->push_back(Linear(4, 4));
                                make_engine(*model, sgd_config(1), communicator);
                              }),
                    Contains("rank 0 has nothing more where rank 1 has 1.weight Float[4, 4]"));
}

TEST_CASE("Ranks with different settings get an error") {
  CHECK_THROWS_WITH(run_ranks(2,
                              [&](std::shared_ptr<Communicator> communicator) {
                                Net model;
                                make_engine(*model, sgd_config(1, 1, communicator->rank()), communicator);
                              }),
                    Contains("rank 1 has another model or another config than rank 0: their configs, "
                             "optimizers or schedules differ"));
}

TEST_CASE("Ranks that use parameters in different orders at stage 3 get an error that shows both uses") {
  std::vector<std::string> errors(2);
  run_ranks(
      2,
      [&](std::shared_ptr<Communicator> communicator) {
        torch::nn::Sequential model(Linear(8, 8), Linear(8, 8));
        InitializeOptions options;
        options.bucket_numel = 1;  // gives each parameter its own bucket
        Engine engine = make_engine(*model, R"({"train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})",
                                    communicator, options);
        const int first = communicator->rank();
        try {
          at::Tensor hidden = model[first]->as<Linear>()->forward(torch::ones({2, 8}));
          model[1 - first]->as<Linear>()->forward(hidden);
        } catch (const CommError& error) {
          errors[communicator->rank()] = error.what();
        }
      },
      std::chrono::milliseconds(2000));
  for (const std::string& error : errors) {
    CHECK_THAT(error, Contains("ranks disagree on the next collective") && Contains("rank 0") &&
                          Contains("rank 1") && Contains("for aten::addmm on 0.") &&
                          Contains("for aten::addmm on 1."));
  }
}

TEST_CASE("A rank that stops taking part is named by the deadline") {
  CHECK_THROWS_WITH(
      run_ranks(
          3,
          [&](std::shared_ptr<Communicator> communicator) {
            Net model;
            Engine engine = make_engine(*model, sgd_config(2), communicator);
            if (communicator->rank() == 1) return;
            engine.backward(model->forward(sample(0, 0, 0), true).sum());
            engine.step();
          },
          std::chrono::milliseconds(500)),
      Contains("reduce_scatter of gradients of bucket") && Contains("rank 1 did not take part"));
}

}  // namespace zerorun::testing
