// Memory that a program gives to parameters in a GatheredParameters scope.
#include <catch2/catch.hpp>
#include <optional>
#include <stdexcept>

#include "engine/gathered_parameters.h"
#include "tests/engine/scope_support.h"

namespace zerorun::testing {
namespace {

using torch::nn::Linear;

}  // namespace

TEST_CASE("Memory that a scope's modifier rank gives to parameters counts as a write") {
  const int stage = GENERATE(0, 1, 2, 3);
  on_ranks(2, stage, [&](Chain& chain, int rank) {
    const at::Tensor given = values({4, 4}, 90);
    const auto plain = Chain::make();
    {
      torch::NoGradGuard no_grad;
      plain->parameters()[1].copy_(given);
      plain->parameters()[2].copy_(given * 2);
    }
    {
      GatheredParameters scope(chain.engine, {chain.weight(1), chain.weight(2)}, /*modifier_rank=*/1);
      if (rank == 1) {
        chain.weight(1).set_data(given.t().contiguous().t());
        chain.weight(2).set_data(given);
        chain.weight(2).set_data(given * 2);
      } else {
        chain.weight(2).set_data(torch::zeros({7}));  // what other ranks do does not count
      }
    }
    chain.expect_value(1, given, "given");
    chain.expect_value(2, given * 2, "given last");
    train_beside(chain, *plain, 0, 3);
    for (int layer = 0; layer < 4; ++layer)
      chain.expect_value(layer, plain->parameters()[layer].detach(), "trained");
  });
}

TEST_CASE("In a scope with a modifier rank parameters may get memory of each other, and views of their own") {
  const std::string how = GENERATE("swap", "rotate", "transpose", "same", "from_blob");
  CAPTURE(how);
  const auto act = [&](std::vector<at::Tensor> weights) {
    std::vector<at::Tensor> old;
    for (const at::Tensor& weight : weights) old.push_back(weight.variable_data());
    if (how == "swap" || how == "rotate") weights[0].set_data(old[1]);
    if (how == "swap") weights[1].set_data(old[0]);
    if (how == "rotate") weights[1].set_data(old[2]);
    if (how == "rotate") weights[2].set_data(old[0]);
    if (how == "transpose") weights[0].set_data(old[0].t());
    if (how == "same") weights[0].set_data(old[1]);
    if (how == "from_blob") {
      weights[0].set_data(torch::from_blob(old[1].data_ptr(), {4, 4}, [keep = old[1]](void*) {}));
      weights[1].set_data(torch::zeros({4, 4}));
    }
  };
  on_ranks(GENERATE(1, 2), GENERATE(0, 1, 2, 3), [&](Chain& chain, int rank) {
    const auto plain = Chain::make();
    act(plain->parameters());
    std::vector<at::Tensor> expected;
    for (const at::Tensor& weight : plain->parameters()) expected.push_back(weight.detach().contiguous());
    {
      GatheredParameters scope(chain.engine, chain.model->parameters(), /*modifier_rank=*/0);
      if (rank == 0) act(chain.model->parameters());
    }
    for (int layer = 0; layer < 4; ++layer) chain.expect_value(layer, expected[layer], "at the end");
  });
}

TEST_CASE("Frozen parameters outside of buckets may get memory of each other, too") {
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    torch::nn::Sequential model(Linear(3, 4), Linear(4, 4), Linear(4, 3));
    fill(*model, 5);
    const auto weights = model->parameters();
    for (const size_t index : {2, 3}) weights[index].requires_grad_(false);
    const at::Tensor square = weights[2].detach().clone();
    Engine engine = make_engine(*model, Partition{.stage = 1}, communicator);
    {
      GatheredParameters scope(engine, {weights[2], weights[3]}, 1);
      if (communicator->rank() == 1) weights[2].set_data(weights[2].variable_data().t());
    }
    expect_same(weights[2].detach().contiguous(), square.t().contiguous(), "transposed");
    try {
      GatheredParameters scope(engine, {weights[2]}, 1);
      if (communicator->rank() == 1) weights[2].variable_data().zero_();
      throw std::range_error("in the scope");
    } catch (const std::range_error&) {
    }
    expect_same(weights[2].detach().contiguous(), square.t().contiguous(), "after an exception");
  }));
}

TEST_CASE("Memory given to parameters in a scope that does not take it is an error, and training goes on") {
  const int stage = GENERATE(0, 1, 2, 3);
  on_ranks(2, stage, [&](Chain& chain, int rank) {
    const auto plain = Chain::make();
    const auto give = [&](std::optional<int> modifier_rank, const at::Tensor& data) {
      GatheredParameters scope(chain.engine, {chain.weight(1)}, modifier_rank);
      chain.weight(1).set_data(data);
    };
    expect_throws(
        [&] {
          give({}, torch::zeros({4, 4}));
        },
        "parameter b.weight has got other memory", "no modifier");
    const std::string what = "parameter b.weight is [4, 4] of Float and has got ";
    expect_throws(
        [&] {
          give(0, torch::zeros({4, 2}));
        },
        "rank 0: GatheredParameters: " + what + "[4, 2]", "shape");
    expect_throws([&] { give(1, torch::zeros({4, 4}, at::kDouble)); }, what + "[4, 4] of Double", "dtype");
    expect_throws([&] { give(0, torch::zeros({2}, rank == 0 ? at::kFloat : at::kDouble)); }, what + "[2]",
                  "both");
    try {
      GatheredParameters scope(chain.engine, {chain.weight(1)}, 0);
      chain.weight(1).set_data(torch::zeros({4, 4}));
      throw std::runtime_error("in the scope");
    } catch (const std::runtime_error&) {
    }
    chain.expect_value(1, chain.initial(1), "as before");
    train_beside(chain, *plain, 0, 2);
    {
      GatheredParameters scope(chain.engine, {chain.weight(1)}, 0);
      chain.weight(1).set_data(torch::zeros({4, 4}));
      chain.engine.backward(loss_of(chain.model->run(7)));
    }
    expect_throws([&] { chain.engine.step(); }, "parameter b.weight had other memory", "a lost gradient");
    chain.engine.zero_grad();
    {
      torch::NoGradGuard no_grad;
      plain->parameters()[1].zero_();
    }
    train_beside(chain, *plain, 2, 4);
    chain.expect_value(1, plain->parameters()[1].detach(), "trained");
  });
}

}  // namespace zerorun::testing
