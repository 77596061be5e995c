// Tests iterations that differ from the previous one, operators that throw, and threads of the program:
// training with partitioned parameters stays correct. Ranks that run different operators get an error that
// shows both.
#include <catch2/catch.hpp>
#include <thread>

#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

using torch::nn::Linear;

// Four layers. The tests call apply() with the order of the layers instead of Built::run.
struct Layers {
  static std::shared_ptr<Built> make() {
    return build([](Built& built) {
      for (const char* name : {"a", "b", "c", "d"}) built.add(name, Linear(6, 6));
      return nullptr;
    });
  }
  static at::Tensor apply(const Built& built, const std::vector<int>& order, at::Tensor x) {
    const auto parameters = built.parameters();
    for (int layer : order)
      x = torch::tanh(torch::linear(x, parameters[2 * layer], parameters[2 * layer + 1]));
    return x;
  }
};

at::Tensor input(int iteration) {
  return values({3, 6}, iteration);
}

// Trains six steps with the engine and with a plain module, and CHECKs that the parameters have the same
// bits. `iteration` returns the losses of one step. `departs`: whether iterations are expected to differ from
// the trace.
using Iteration = std::function<std::vector<at::Tensor>(const Built&, int iteration)>;
void check_training(const Iteration& iteration, bool departs) {
  const int64_t max_live = GENERATE(0, 64, 100'000);
  const int64_t prefetch = GENERATE(0, 100'000);
  CAPTURE(max_live, prefetch);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto model = Layers::make(), plain = Layers::make();
    Engine engine = make_engine(*model, Partition{.max_live = max_live, .prefetch = prefetch}, communicator);
    for (int i = 0; i < 6; ++i) {
      for (const at::Tensor& loss : iteration(*plain, i)) loss.backward({}, /*retain_graph=*/true);
      plain_step(*plain);
      for (const at::Tensor& loss : iteration(*model, i)) engine.backward(loss, /*retain_graph=*/true);
      engine.step();
      expect_released(*model);
    }
    expect_same(*model, *plain, "after training");
    expect((engine.residency().departures > 0) == departs, "departures");
  }));
}

}  // namespace

TEST_CASE("Iterations that skip layers, use another order, or end early") {
  check_training(
      [](const Built& built, int i) {
        const std::vector<std::vector<int>> orders = {{0, 1, 2, 3}, {0, 2, 3},       {3, 2, 1, 0},
                                                      {0},          {0, 1, 1, 2, 0}, {0, 1, 2, 3}};
        return std::vector{loss_of(Layers::apply(built, orders[i], input(i)))};
      },
      true);
}

TEST_CASE("Backward twice over one graph, and two losses a step") {
  check_training(
      [](const Built& built, int i) {
        const at::Tensor middle = Layers::apply(built, {0, 1}, input(i));
        const at::Tensor loss = loss_of(Layers::apply(built, {2, 3}, middle));
        return std::vector{loss, loss, loss_of(middle)};
      },
      false);
}

TEST_CASE("Evaluation between forward and backward, between steps, and after training") {
  const int64_t max_live = GENERATE(0, 64, 100'000);
  CAPTURE(max_live);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto model = Layers::make(), plain = Layers::make();
    Engine engine = make_engine(*model, Partition{.max_live = max_live, .prefetch = 64}, communicator);
    auto evaluate = [&](int i) {
      torch::NoGradGuard no_grad;
      engine.eval();
      for (int k = 0; k < 3; ++k) {
        expect_same(Layers::apply(*model, {3, 1, 0}, input(k + i)),
                    Layers::apply(*plain, {3, 1, 0}, input(k + i)), "evaluation");
      }
      engine.train();
    };
    for (int i = 0; i < 4; ++i) {
      const at::Tensor loss = loss_of(Layers::apply(*model, {0, 1, 2, 3}, input(i)));
      if (i > 0) evaluate(i);
      engine.backward(loss);
      engine.step();
      loss_of(Layers::apply(*plain, {0, 1, 2, 3}, input(i))).backward();
      plain_step(*plain);
      evaluate(i);
    }
    for (int i = 0; i < 20; ++i) evaluate(i);
    expect_same(*model, *plain, "in the end");
  }));
}

TEST_CASE("An operator that throws leaves no parameter gathered") {
  const int world = GENERATE(1, 2);
  CAPTURE(world);
  CHECK_NOTHROW(run_ranks(world, [](std::shared_ptr<Communicator> communicator) {
    auto model = Layers::make(), plain = Layers::make();
    Engine engine = make_engine(*model, Partition(), communicator);
    for (int i = 0; i < 4; ++i) {
      const at::Tensor weight = model->parameters()[4];
      expect_throws([&] { weight.mm(torch::ones({5, 5})); }, "mat1 and mat2 shapes", "a wrong shape");
      expect_throws([&] { at::cat({weight, torch::ones({3, 3})}); }, "Sizes of tensors must match", "cat");
      {
        torch::NoGradGuard no_grad;
        expect_throws([&] { weight.copy_(torch::ones({5})); }, "must match the size", "copy_");
      }
      engine.backward(loss_of(Layers::apply(*model, {0, 1, 2, 3}, input(i))));
      engine.step();
      expect_released(*model);
      loss_of(Layers::apply(*plain, {0, 1, 2, 3}, input(i))).backward();
      plain_step(*plain);
    }
    expect_same(*model, *plain, "after training");
  }));
}

TEST_CASE("Accumulation over micro-steps with different inputs") {
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    auto model = Layers::make(), plain = Layers::make();
    Engine engine = make_engine(*model, Partition{.prefetch = 64, .accumulation = 2}, communicator);
    for (int i = 0; i < 8; ++i) {
      engine.backward(loss_of(Layers::apply(*model, {0, 1, 2, 3}, input(i))));
      engine.step();
      (loss_of(Layers::apply(*plain, {0, 1, 2, 3}, input(i))) / 2).backward();
      if (i % 2 == 1) plain_step(*plain);
    }
    expect_same(*model, *plain, "after training");
    expect(engine.residency().departures == 0, "departures");
  }));
}

// A single rank has no other rank to agree with on the order of gathers, so any thread may run any part of
// the model.
TEST_CASE("Two threads at the same time run branches of one forward and compute gradients") {
  const int64_t max_live = GENERATE(0, 64);
  CAPTURE(max_live);
  auto model = Layers::make(), plain = Layers::make();
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Engine engine = make_engine(*model, Partition{.max_live = max_live}, communicator);
    for (int i = 0; i < 30; ++i) {
      at::Tensor outputs[2];
      std::exception_ptr failures[2];
      auto branch = [&](int which) {
        try {
          const std::vector<int> order = which == 0 ? std::vector{0, 1, 2, 0} : std::vector{3, 1, 2, 1};
          outputs[which] = Layers::apply(*model, order, input(i));
          torch::autograd::grad({outputs[which].sum()}, {model->parameters()[2]}, {}, /*retain_graph=*/true);
        } catch (...) {
          failures[which] = std::current_exception();
        }
      };
      std::thread other(branch, 1);
      branch(0);
      other.join();
      REQUIRE(!failures[0]);
      REQUIRE(!failures[1]);
      engine.backward(loss_of(outputs[0] + outputs[1]));
      engine.step();
      const at::Tensor sum =
          Layers::apply(*plain, {0, 1, 2, 0}, input(i)) + Layers::apply(*plain, {3, 1, 2, 1}, input(i));
      loss_of(sum).backward();
      plain_step(*plain);
      // The order in which gradients of one parameter are added depends on the timing of the threads. So the
      // comparison allows rounding errors, and then both models get equal values for the next iteration.
      const auto found = model->parameters(), expected = plain->parameters();
      torch::NoGradGuard no_grad;
      for (size_t index = 0; index < found.size(); ++index) {
        REQUIRE(torch::allclose(found[index], expected[index], 1e-4, 1e-5));
        found[index].copy_(expected[index]);
      }
    }
  });
}

TEST_CASE("Ranks that run different operators get an error that shows both operators") {
  const bool planned = GENERATE(false, true);
  CAPTURE(planned);
  std::string message;
  try {
    run_ranks(
        2,
        [&](std::shared_ptr<Communicator> communicator) {
          auto model = Layers::make();
          Engine engine = make_engine(*model, Partition(), communicator);
          for (int i = 0; i < (planned ? 3 : 0); ++i) {
            engine.backward(loss_of(Layers::apply(*model, {0, 1, 2}, input(i))));
            engine.step();
          }
          const bool second = communicator->rank() == 1;
          Layers::apply(*model, second ? std::vector{0, 2, 1} : std::vector{0, 1, 2}, input(5));
        },
        std::chrono::milliseconds(2000));
  } catch (const std::exception& error) {
    message = error.what();
  }
  CAPTURE(message);
  for (const char* part : {"rank 0 is in all_gather", "for aten::addmm on b.bias", "rank 1 in all_gather",
                           "for aten::addmm on c.bias"}) {
    CHECK(message.find(part) != std::string::npos);
  }
}

}  // namespace zerorun::testing
