// Compares ZeroRedundancyOptimizer and enable_zero() with plain LibTorch, and tests the calls that they
// refuse.
#include "engine/zero_redundancy_optimizer.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

torch::nn::Sequential mlp() {
  torch::nn::Sequential model(torch::nn::Linear(6, 9), torch::nn::Tanh(), torch::nn::Linear(9, 4));
  fill(*model, 21);
  return model;
}

at::Tensor loss_of_batch(torch::nn::Sequential& model, int step, int backward, int rank) {
  return model->forward(values({3, 6}, 1000 * step + 10 * backward + rank)).square().mean();
}

constexpr int kSteps = 5;

// Trains kSteps steps of two backwards each, whose gradients are summed. The gradients of step 2 are dropped.
// The scheduler halves the learning rate every two steps.
template <typename Optimizer, typename Drop>
void train(torch::nn::Sequential& model, Optimizer& optimizer, torch::optim::StepLR& scheduler,
           const std::vector<int>& ranks, const Drop& drop) {
  for (int step = 0; step < kSteps; ++step) {
    drop();
    for (int backward = 0; backward < 2; ++backward) {
      for (const int rank : ranks)
        (loss_of_batch(model, step, backward, rank) / static_cast<double>(ranks.size())).backward();
    }
    if (step == 2) continue;
    optimizer.step();
    scheduler.step();
  }
}

struct Plain {
  std::vector<at::Tensor> parameters;
  double rate;
};

Plain plain_training(int world) {
  auto model = mlp();
  torch::optim::Adam adam(model->parameters(), 0.02);
  torch::optim::StepLR scheduler(adam, 2, 0.5);
  std::vector<int> ranks(world);
  for (int rank = 0; rank < world; ++rank) ranks[rank] = rank;
  train(model, adam, scheduler, ranks, [&] { adam.zero_grad(); });
  return {copies_of(model), adam.param_groups()[0].options().get_lr()};
}

}  // namespace

TEST_CASE(
    "A wrapped optimizer trains as the optimizer itself: sums, dropped batches, a torch::optim scheduler") {
  for (const int level : {1, 2, 3}) {
    for (const int world : {1, 2, 3}) {
      INFO("level " << level << " on " << world << " ranks");
      const Plain expected = plain_training(world);
      CHECK(expected.rate < 0.02);
      CHECK_NOTHROW(run_ranks(world, [&](std::shared_ptr<Communicator> communicator) {
        const int rank = communicator->rank();
        auto model = mlp();
        ZeroRedundancyOptimizer optimizer(torch::optim::Adam(model->parameters(), 0.02),
                                          {.overlap_communication = world != 2,
                                           .partition_grad = level >= 2,
                                           .partition_parameters = level == 3,
                                           .communicator = communicator});
        torch::optim::StepLR scheduler(optimizer, 2, 0.5);
        train(model, optimizer, scheduler, {rank}, [&] { optimizer.zero_grad(); });
        check_close(*model, expected.parameters);
        expect(optimizer.param_groups()[0].options().get_lr() == expected.rate, "the scheduled rate");
        expect(optimizer.engine().get_lr()[0] == expected.rate, "the rate of the next step");
        expect(optimizer.engine().config().zero.stage == level, "the level");
      }));
    }
  }
}

TEST_CASE("The state of a wrapped optimizer is saved and loaded through checkpoints, at other levels too") {
  const TemporaryFolder folder;
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    const auto steps = [&](torch::nn::Sequential& model, ZeroRedundancyOptimizer& optimizer, int from,
                           int to) {
      for (int step = from; step < to; ++step) {
        loss_of_batch(model, step, 0, rank).backward();
        optimizer.step();
      }
    };
    std::vector<at::Tensor> expected;
    {
      auto model = mlp();
      ZeroRedundancyOptimizer optimizer(torch::optim::Adam(model->parameters(), 0.02),
                                        {.communicator = communicator});
      steps(model, optimizer, 0, 3);
      optimizer.engine().save_checkpoint(folder / "saves");
      steps(model, optimizer, 3, 6);
      optimizer.engine().wait_for_checkpoint();
      expected = copies_of(model);
    }
    for (const bool partition_parameters : {false, true}) {
      auto model = mlp();
      fill(*model, 77);
      ZeroRedundancyOptimizer optimizer(torch::optim::Adam(model->parameters(), 0.02),
                                        {.partition_grad = true,
                                         .partition_parameters = partition_parameters,
                                         .communicator = communicator});
      optimizer.engine().load_checkpoint(folder / "saves");
      steps(model, optimizer, 3, 6);
      expect_same(copies_of(model), expected, "resumed");
    }
  }));
}

TEST_CASE("enable_zero(): training and prediction in turn, as in the plain program") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world : {1, 2, 4}) {
      INFO("stage " << stage << " on " << world << " ranks");
      CHECK_NOTHROW(run_ranks(world, [&](std::shared_ptr<Communicator> communicator) {
        auto model = mlp(), plain = mlp();
        torch::optim::SGD sgd(model->parameters(), 0.1), plain_sgd(plain->parameters(), 0.1);
        const auto zero = enable_zero(*model, sgd, stage, communicator);
        for (int step = 0; step < 4; ++step) {
          model->train();
          loss_of_batch(model, step, 0, communicator->rank()).backward();
          zero->step();
          plain_sgd.zero_grad();
          for (int rank = 0; rank < world; ++rank) (loss_of_batch(plain, step, 0, rank) / world).backward();
          plain_sgd.step();
          model->eval();
          torch::NoGradGuard no_grad;
          const at::Tensor x = values({5, 6}, 9);
          expect(torch::allclose(model->forward(x), plain->forward(x), 1e-5, 1e-6), "prediction");
        }
      }));
    }
  }
}

TEST_CASE("Calls that ZeroRedundancyOptimizer and enable_zero() refuse") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    auto model = mlp();
    const auto wrapped = [&] {
      return std::make_unique<ZeroRedundancyOptimizer>(torch::optim::Adam(model->parameters(), 0.1),
                                                       ZeroRedundancyOptions{.communicator = communicator});
    };
    SECTION("a step without a backward, and a closure") {
      const auto optimizer = wrapped();
      CHECK_THROWS_WITH(optimizer->step(), Contains("without an earlier backward"));
      CHECK_THROWS_WITH(optimizer->step([] { return at::Tensor(); }), Contains("a closure"));
    }
    SECTION("two on one model") {
      auto first = wrapped();
      CHECK_THROWS_WITH(wrapped(), Contains("belongs to a ZeroRedundancyOptimizer already"));
      torch::optim::SGD sgd(model->parameters(), 0.1);
      CHECK_THROWS_WITH(enable_zero(*model, sgd, 1, communicator),
                        Contains("belongs to a ZeroRedundancyOptimizer"));
      first.reset();
      CHECK_NOTHROW(wrapped());
    }
    SECTION("the parameters of another model") {
      auto other = mlp();
      torch::optim::SGD sgd(other->parameters(), 0.1);
      CHECK_THROWS_AS(enable_zero(*model, sgd, 1, communicator), UserError);
      torch::optim::SGD own(model->parameters(), 0.1);
      CHECK_NOTHROW(enable_zero(*model, own, 1, communicator));
    }
    SECTION("another stage, and an optimizer that is not element-wise") {
      torch::optim::SGD sgd(model->parameters(), 0.1);
      CHECK_THROWS_WITH(enable_zero(*model, sgd, 4, communicator),
                        Contains("stage 4, expected 0, 1, 2 or 3"));
      torch::optim::LBFGS lbfgs(model->parameters());
      CHECK_THROWS_AS(enable_zero(*model, lbfgs, 1, communicator), UserError);
    }
  });
}

}  // namespace zerorun::testing
