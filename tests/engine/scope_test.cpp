// Tests GatheredParameters. In a scope, parameters that are otherwise not in memory allow raw access, and
// ranks may access them in different ways.
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <thread>

#include "engine/gathered_parameters.h"
#include "tests/engine/scope_support.h"

namespace zerorun::testing {

TEST_CASE("A scope gives raw access to the values, also right after a step") {
  const int stage = GENERATE(0, 1, 2, 3);
  on_ranks(GENERATE(1, 2, 3), stage, [](Chain& chain, int) {
    const at::Tensor expected = chain.initial(1);
    {
      GatheredParameters scope(chain.engine, {chain.weight(1)});
      expect(std::memcmp(chain.weight(1).data_ptr<float>(), expected.const_data_ptr(), 64) == 0,
             "raw values");
    }
    if (chain.partitioned()) expect_released(chain.weight(1), "behind the scope");
    chain.engine.backward(loss_of(chain.model->run(0)));
    chain.engine.step();
    {
      GatheredParameters scope(chain.engine, chain.model->parameters());
      const at::Tensor raw = torch::from_blob(chain.weight(1).data_ptr(), {4, 4}).clone();
      expect(!torch::equal(raw, expected), "the values from before the step");
      expect_same(chain.weight(1), raw, "raw values and operators");
    }
  });
}

TEST_CASE("All ranks get the values that the modifier rank writes") {
  const int stage = GENERATE(0, 1, 2, 3);
  const int world = GENERATE(1, 2, 3);
  on_ranks(world, stage, [&](Chain& chain, int rank) {
    const int modifier = world - 1;
    const at::Tensor first = values({4, 4}, 60), second = values({4, 4}, 61);
    {
      GatheredParameters scope(chain.engine, {chain.weight(0), chain.weight(2)}, modifier);
      if (rank == modifier) {
        write_raw(chain.weight(0), first);
        torch::NoGradGuard no_grad;
        chain.weight(2).copy_(second);
      }
    }
    chain.expect_value(0, first, "raw writes");
    chain.expect_value(2, second, "writes by operators");
    chain.expect_value(1, chain.initial(1), "what is not in the scope");
    // Training continues from the written values, which are the same on all ranks.
    auto plain = Chain::make();
    torch::NoGradGuard no_grad;
    plain->parameters()[0].copy_(first);
    plain->parameters()[2].copy_(second);
    torch::AutoGradMode grad(true);
    if (world == 3) return;  // a mean over three ranks is not exact
    train_beside(chain, *plain, 0, 2);
    expect_same(*chain.model, *plain, "after training");
  });
}

TEST_CASE("Without a modifier rank equal writes of all ranks in a scope are kept") {
  const int stage = GENERATE(0, 2, 3);
  on_ranks(GENERATE(1, 2), stage, [](Chain& chain, int) {
    torch::NoGradGuard no_grad;
    {
      GatheredParameters scope(chain.engine, {chain.weight(3)});
      chain.weight(3).mul_(2);
      chain.weight(1).mul_(4);
    }
    chain.expect_value(3, chain.initial(3) * 2, "in the scope");
    chain.expect_value(1, chain.initial(1) * 4, "outside of it");
  });
}

TEST_CASE("Scopes nest") {
  const int stage = GENERATE(0, 2, 3);
  on_ranks(2, stage, [](Chain& chain, int rank) {
    const at::Tensor inner = values({4, 4}, 62), outer = values({4, 4}, 63);
    {
      GatheredParameters first(chain.engine, {chain.weight(0), chain.weight(1)}, 0);
      {
        GatheredParameters second(chain.engine, {chain.weight(1), chain.weight(2)}, 1);
        if (rank == 1) write_raw(chain.weight(1), inner);
        if (rank == 1) write_raw(chain.weight(2), inner);
      }
      expect_same(torch::from_blob(chain.weight(1).data_ptr(), {4, 4}), inner, "within the outer scope");
      if (chain.partitioned()) expect_released(chain.weight(2), "of the inner scope alone");
      if (rank == 0) write_raw(chain.weight(0), outer);
    }
    chain.expect_value(0, outer, "of the outer scope alone");
    chain.expect_value(1, inner, "of both");
    chain.expect_value(2, inner, "of the inner scope alone");
  });
}

TEST_CASE("A scope that an exception leaves changes nothing, and the ranks stay in step") {
  on_ranks(2, 3, [](Chain& chain, int rank) {
    expect_throws(
        [&] {
          GatheredParameters scope(chain.engine, {chain.weight(0)}, 0);
          if (rank == 0) write_raw(chain.weight(0), values({4, 4}, 64));
          throw std::runtime_error("on every rank");
        },
        "on every rank", "the scope");
    chain.expect_value(0, chain.initial(0), "after the exception");
    auto plain = Chain::make();
    train_beside(chain, *plain, 0, 3);
    expect_same(*chain.model, *plain, "after training");
  });
}

TEST_CASE("In a scope one rank alone may run operators on the scope's parameters, also after writes") {
  const bool writes = GENERATE(false, true);
  on_ranks(GENERATE(2, 3), GENERATE(1, 2, 3), [&](Chain& chain, int rank) {
    torch::NoGradGuard no_grad;
    chain.weight(0).mul_(0.5);
    {
      GatheredParameters scope(chain.engine, {chain.weight(1)}, writes ? std::optional(0) : std::nullopt);
      if (rank == 0 && writes) chain.weight(1).fill_(0.25);
      if (rank == 0) expect(std::isfinite(chain.weight(1).norm().item<float>()), "the norm");
    }
    chain.expect_value(0, chain.initial(0) * 0.5, "written before the scope");
    chain.expect_value(1, writes ? torch::full({4, 4}, 0.25) : chain.initial(1), "in the scope");
  });
}

TEST_CASE(
    "An exception that one rank throws and catches around a read-only scope does not affect other ranks") {
  const int thrower = GENERATE(0, 1);
  const bool late = GENERATE(false, true);
  on_ranks(2, GENERATE(0, 1, 3), [&](Chain& chain, int rank) {
    auto plain = Chain::make();
    for (int i = 0; i < 3; ++i) {
      try {
        GatheredParameters outer(chain.engine, {chain.weight(0), chain.weight(2)});
        GatheredParameters inner(chain.engine, {chain.weight(1), chain.weight(2)});
        torch::NoGradGuard no_grad;
        chain.weight(1).mul_(2);
        if (rank == thrower) throw std::range_error("disk full");
        if (late) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      } catch (const std::range_error&) {
      }
      {
        torch::NoGradGuard no_grad;
        plain->parameters()[1].mul_(2);
      }
      chain.expect_value(1, plain->parameters()[1], "written by all before the exception");
      train_beside(chain, *plain, i, i + 1);
    }
    expect_same(*chain.model, *plain, "after training");
  });
}

TEST_CASE("Raw access after synchronize() is still possible after a scope") {
  on_ranks(GENERATE(1, 2), GENERATE(0, 1, 2), [](Chain& chain, int rank) {
    const at::Tensor written = values({4, 4}, 65), later = values({4, 4}, 66);
    chain.engine.synchronize();
    {
      GatheredParameters scope(chain.engine, {chain.weight(1)}, 0);
      if (rank == 0) write_raw(chain.weight(1), written);
    }
    { GatheredParameters scope(chain.engine, {chain.weight(2)}); }
    expect_same(torch::from_blob(chain.weight(1).data_ptr(), {4, 4}), written, "what the scope wrote");
    expect_same(torch::from_blob(chain.weight(2).data_ptr(), {4, 4}), chain.initial(2), "what it read");
    write_raw(chain.weight(1), later);
    auto plain = Chain::make();
    {
      torch::NoGradGuard no_grad;
      plain->parameters()[1].copy_(later);
    }
    train_beside(chain, *plain, 0, 2);
    expect_same(*chain.model, *plain, "after training");
  });
}

TEST_CASE("If only some ranks write in a scope without modifier rank, ranks still have equal values") {
  const int writer = GENERATE(0, 1);
  on_ranks(2, 3, [&](Chain& chain, int rank) {
    torch::NoGradGuard no_grad;
    try {
      GatheredParameters scope(chain.engine, {chain.weight(1)});
      if (rank != writer) throw std::range_error("before it wrote");
      chain.weight(1).fill_(1 + rank);
    } catch (const std::range_error&) {
    }
    chain.release(1);
    const at::Tensor mine = chain.weight(1).detach().clone().flatten();
    at::Tensor sum = mine.clone();
    chain.engine.communicator().all_reduce(sum, "a comparison")->wait();
    expect_same(sum, mine * 2, "both ranks");
  });
}

TEST_CASE("Calls that a scope refuses") {
  const int stage = GENERATE(0, 1, 3);
  on_ranks(GENERATE(1, 2), stage, [](Chain& chain, int) {
    auto open = [&](const at::Tensor& tensor, std::optional<int> rank = std::nullopt) {
      return [&chain, tensor, rank] {
        GatheredParameters scope(chain.engine, {chain.weight(1), tensor}, rank);
      };
    };
    const std::string foreign = "tensor 1 is not a parameter of the engine's model";
    expect_throws(open(torch::zeros({4, 4})), foreign, "a tensor of its own");
    expect_throws(open(chain.weight(0).detach()), foreign, "a detached parameter");
    expect_throws(open(chain.weight(0).t()), foreign, "a view");
    expect_throws(open(chain.weight(0), 2), "modifier rank 2 is not one of", "a rank too many");
    expect_throws(open(chain.weight(0), -1), "modifier rank -1 is not one of", "a negative rank");
    if (chain.partitioned()) expect_released(chain.weight(1), "after refusals");
    auto plain = Chain::make();
    train_beside(chain, *plain, 0, 2);
    expect_same(*chain.model, *plain, "after training");
  });
}

TEST_CASE("A step inside a scope is refused at every stage, and possible after it") {
  on_ranks(GENERATE(1, 2), GENERATE(0, 2, 3), [](Chain& chain, int) {
    auto plain = Chain::make();
    loss_of(plain->run(0)).backward();
    plain_step(*plain);
    chain.engine.backward(loss_of(chain.model->run(0)));
    {
      GatheredParameters scope(chain.engine, {chain.weight(0)});
      expect_throws([&] { chain.engine.step(); }, "inside a GatheredParameters scope", "step()");
    }
    chain.engine.step();
    expect_same(*chain.model, *plain, "after the step");
  });
}

TEST_CASE("A frozen parameter in a scope") {
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, Partition(), communicator);
    {
      GatheredParameters scope(engine, {model->scale, model->last->bias}, 1);
      if (communicator->rank() == 1) model->scale.data_ptr<float>()[0] = 5;
    }
    expect(model->scale.item<float>() == 5, "what rank 1 wrote");
  }));
}

TEST_CASE("Uses of other parameters inside a scope, and a scope opened after a use") {
  on_ranks(GENERATE(1, 2), 3, [](Chain& chain, int) {
    chain.weight(0).sum();
    GatheredParameters scope(chain.engine, {chain.weight(1)});
    // The bucket of this parameter was gathered for the use before the scope, and may have been released.
    expect_same(chain.weight(0) * 2, chain.initial(0) * 2, "used before and in the scope");
    expect_same(torch::cat({chain.weight(2), chain.weight(1)}),
                torch::cat({chain.initial(2), chain.initial(1)}), "held and not held");
    expect_same(torch::from_blob(chain.weight(1).data_ptr(), {4, 4}), chain.initial(1), "still there");
  });
}

TEST_CASE("A scope within an iteration that follows its plan") {
  const int64_t prefetch = GENERATE(0, 16, 1000);
  const int64_t max_live = GENERATE(0, 32, 1000);
  const int held = GENERATE(0, 1, 2, 3);
  CAPTURE(prefetch, max_live, held);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Chain chain(communicator, {.max_live = max_live, .prefetch = prefetch, .bucket_numel = 16});
    auto plain = Chain::make();
    train_beside(chain, *plain, 0, 2);
    for (int i = 2; i < 5; ++i) {
      at::Tensor x = values({3, 4}, i);
      std::vector<at::Tensor> weights = chain.model->parameters(), expected = plain->parameters();
      for (int layer = 0; layer < 2; ++layer) x = torch::tanh(torch::linear(x, weights[layer]));
      {
        GatheredParameters scope(chain.engine, {weights[held]});
        for (int layer = 2; layer < 4; ++layer) x = torch::tanh(torch::linear(x, weights[layer]));
        const at::Tensor raw = torch::from_blob(weights[held].data_ptr(), {4, 4});
        expect_same(raw, expected[held], "after the forward");
        chain.engine.backward(loss_of(x));
        expect_same(raw, expected[held], "after the backward");
      }
      expect_same(weights[held], expected[held], "behind the scope");
      loss_of(plain->run(i)).backward();
      plain_step(*plain);
      chain.engine.step();
      for (int layer = 0; layer < 4; ++layer) expect_same(weights[layer], expected[layer], "after the step");
    }
  }));
}

TEST_CASE("An abandoned scope with a modifier rank undoes its writes, so ranks stay equal") {
  const std::string how = GENERATE("exception", "set_data", "write", "written before");
  CAPTURE(how);
  on_ranks(GENERATE(1, 2), GENERATE(0, 1, 2, 3), [&](Chain& chain, int rank) {
    const auto plain = Chain::make();
    if (how == "written before") {
      const torch::NoGradGuard no_grad;
      chain.weight(0).mul_(2);
      plain->parameters()[0].mul_(2);
    }
    const auto abandon = [&] {
      GatheredParameters scope(chain.engine, {chain.weight(0), chain.weight(1)}, 0);
      if (rank == 0 && how == "set_data") chain.weight(0).set_data(torch::zeros({4, 4}));
      if (rank == 0 && how != "set_data") write_raw(chain.weight(0), values({4, 4}, 64));
      if (how == "exception" || how == "written before") throw std::runtime_error("in the scope");
      if (rank == 0) chain.weight(1).set_data(torch::zeros({7}));
    };
    expect_throws(abandon, how == "exception" || how == "written before" ? "in the scope" : "has got [7]",
                  how);
    chain.expect_value(0, plain->parameters()[0].detach(), "as before the scope");
    train_beside(chain, *plain, 0, 2);
    for (int layer = 0; layer < 4; ++layer)
      chain.expect_value(layer, plain->parameters()[layer].detach(), "trained");
  });
}

TEST_CASE("What a scope has written stays equal on all ranks if a scope around it is abandoned") {
  const bool inner_too = GENERATE(false, true);
  on_ranks(2, GENERATE(0, 1, 2, 3), [&](Chain& chain, int rank) {
    try {
      GatheredParameters outer(chain.engine, {chain.weight(0)}, 0);
      if (rank == 0) write_raw(chain.weight(0), values({4, 4}, 64));
      try {
        GatheredParameters inner(chain.engine, {chain.weight(0), chain.weight(1)}, 1);
        if (rank == 1) write_raw(chain.weight(0), values({4, 4}, 65));
        if (inner_too) throw std::range_error("in the inner one");
      } catch (const std::range_error&) {
      }
      throw std::range_error("in the outer one");
    } catch (const std::range_error&) {
    }
    chain.release(0);
    const at::Tensor mine = chain.weight(0).detach().clone().flatten();
    at::Tensor sum = mine.clone();
    chain.engine.communicator().all_reduce(sum, "a comparison")->wait();
    expect_same(sum, mine * 2, "both ranks");
  });
}

}  // namespace zerorun::testing
