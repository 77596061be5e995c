// Tests buckets that ranks share. Training gives the same bits as with separate buckets on each rank,
// whatever the program does to parameters between uses, and all ranks together take the memory of one copy.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

// A config with SGD. At stage 3 no parameter stays resident.
std::string net_config(int stage) {
  return R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
             "zero_optimization": {"overlap_comm": true, "stage3_param_persistence_threshold": 0, "stage": )" +
         std::to_string(stage) + "}}";
}

// Delays rank `turn` % `world` by 5 ms, which is longer than its step.
void dawdle(int rank, int turn, int world) {
  if (turn % world == rank) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// A function that acts on a rank's network after each step.
using Between = std::function<void(Net& model, Engine& engine, int rank, int step)>;

struct Outcome {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;
  int64_t copies = 0;  // largest number of bytes of private copies after a step
};

// Trains six steps. Returns rank 0's outcome.
Outcome train_net(int world, int stage, bool shares_memory, const Between& between) {
  Outcome outcome;
  auto body = [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model;
    InitializeOptions options;
    options.bucket_numel = 16;
    Engine engine = make_engine(*model, net_config(stage), communicator, options);
    std::vector<double> losses;
    for (int step = 0; step < 6; ++step) {
      dawdle(rank, step, world);
      at::Tensor loss = model->forward(sample(step, 0, rank), true).square().mean();
      losses.push_back(loss.item<double>());
      engine.backward(loss);
      dawdle(rank, step + 1, world);
      engine.step();
      if (rank == 0) outcome.copies = std::max(outcome.copies, engine.residency().resident_bytes);
      between(model, engine, rank, step);
    }
    const std::vector<at::Tensor> parameters = copies_of(*model);
    if (rank != 0) return;
    outcome.losses = losses;
    outcome.parameters = parameters;
  };
  run_ranks(world, body, std::chrono::seconds(60), shares_memory);
  return outcome;
}

void check_like_own_memory(const Between& between) {
  const int stage = GENERATE(1, 2, 3);
  const int world = GENERATE(2, 3);
  CAPTURE(stage, world);
  const Outcome own = train_net(world, stage, false, between);
  const Outcome shared = train_net(world, stage, true, between);
  CHECK(shared.losses == own.losses);
  REQUIRE(shared.parameters.size() == own.parameters.size());
  for (size_t i = 0; i < own.parameters.size(); ++i) {
    CHECK(torch::equal(shared.parameters[i], own.parameters[i]));
  }
  CHECK(shared.copies == 0);
}

}  // namespace

TEST_CASE("Writes by operators are private to a rank until all ranks receive them") {
  SECTION("of all parameters after every step") {
    check_like_own_memory([](Net& model, Engine&, int rank, int step) {
      torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) {
        dawdle(rank, step, 2);
        parameter.mul_(0.5);
        parameter.add_(0.01 * (step + 1));
      }
    });
  }
  SECTION("of some, in several steps at once, and read before and after") {
    check_like_own_memory([](Net& model, Engine&, int rank, int step) {
      torch::NoGradGuard no_grad;
      dawdle(rank, step, 2);
      const at::Tensor sum = model->first->weight.sum() + model->last->bias.sum();
      model->last->weight.add_(sum * 0.01);
      model->last->weight.clamp_(-0.4, 0.4);
      dawdle(rank, step + 1, 2);
      if (step % 2 == 0) model->first->bias.copy_(model->first->bias * 2);
      model->branch->weight.sub_(model->last->weight.sum() * 0.001);
    });
  }
}

TEST_CASE("Scopes over shared buckets read and write like scopes over separate buckets") {
  SECTION("written by one rank") {
    check_like_own_memory([](Net& model, Engine& engine, int rank, int step) {
      const int modifier = step % 2;
      GatheredParameters scope(engine, {model->first->weight, model->last->bias}, modifier);
      if (rank != modifier) return;
      auto* values = model->first->weight.mutable_data_ptr<float>();
      for (int64_t i = 0; i < model->first->weight.numel(); ++i) values[i] *= 0.5F;
      torch::NoGradGuard no_grad;
      model->last->bias.fill_(0.25);
    });
  }
  SECTION("only read, on ranks that are not in step") {
    check_like_own_memory([](Net& model, Engine& engine, int rank, int step) {
      dawdle(rank, step, 2);
      GatheredParameters scope(engine, model->parameters());
      const at::Tensor copy = model->first->weight.detach().clone();
      if (std::memcmp(copy.const_data_ptr(), model->first->weight.const_data_ptr(), copy.nbytes()) != 0) {
        throw std::runtime_error("raw access finds other values");
      }
    });
  }
}

TEST_CASE("Writes by operators of one rank in a scope are lost at stage 3, and no rank waits for them") {
  const bool throws = GENERATE(false, true);
  CAPTURE(throws);
  auto body = [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model;
    InitializeOptions options;
    options.bucket_numel = 16;
    Engine engine = make_engine(*model, net_config(3), communicator, options);
    const at::Tensor weight = model->first->weight;
    const at::Tensor before = weight.detach().clone();
    try {
      GatheredParameters scope(engine, {weight}, throws ? std::optional<int>(0) : std::nullopt);
      torch::NoGradGuard no_grad;
      if (rank == 0) weight.fill_(1);
      if (throws) throw std::runtime_error("on every rank");
    } catch (const std::runtime_error&) {
    }
    expect_same(weight.detach().clone(), before, "after the scope");
    {
      GatheredParameters scope(engine, {weight});
      torch::NoGradGuard no_grad;
      weight.mul_(3);  // all ranks write
    }
    expect_same(weight.detach().clone(), before * 3, "after all have written");
    engine.backward(model->forward(sample(0, 0, rank), true).square().mean());
    engine.step();
    expect(engine.residency().resident_bytes == 0, "a copy is left");
  };
  CHECK_NOTHROW(run_ranks(3, body, std::chrono::seconds(20), true));
}

TEST_CASE("Private copies are freed after the first read by all ranks, and read-only scopes leave none") {
  auto body = [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model;
    InitializeOptions options;
    options.bucket_numel = 16;
    Engine engine = make_engine(*model, net_config(3), communicator, options);
    const std::vector<at::Tensor> before = copies_of(*model);
    const auto copies = [&] { return engine.residency().resident_bytes; };
    torch::NoGradGuard no_grad;
    for (int round = 1; round <= 3; ++round) {
      std::vector<at::Tensor> trained;
      for (at::Tensor& parameter : model->parameters()) {
        if (parameter.requires_grad()) trained.push_back(parameter);
      }
      at::_foreach_mul_(trained, 0.5);
      expect(copies() > 0, "writes go to copies");
      if (rank == 1) std::reverse(trained.begin(), trained.end());
      for (const at::Tensor& parameter : trained) parameter.sum();
      expect(copies() == 0, "copies after all have read");
      { GatheredParameters scope(engine, model->parameters()); }
      expect(copies() == 0, "copies behind a scope");
    }
    const auto after = model->parameters();
    for (size_t i = 0; i < after.size(); ++i) {
      expect_same(after[i], before[i] * (after[i].requires_grad() ? 0.125 : 1), "the values");
    }
  };
  CHECK_NOTHROW(run_ranks(2, body, std::chrono::seconds(20), true));
}

TEST_CASE("A rank that has updated does not change parameters that a slower rank still uses") {
  const int stage = GENERATE(1, 2, 3);
  CAPTURE(stage);
  auto body = [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model;
    Engine engine = make_engine(*model, net_config(stage), communicator);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor before = model->first->weight.detach().clone();
      engine.backward(model->forward(sample(step, 0, rank), true).square().mean());
      if (rank == step % 3) {
        for (int look = 0; look < 20; ++look) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          expect_same(model->first->weight.detach().clone(), before, "before step()");
        }
      }
      engine.step();
      expect(!torch::equal(model->first->weight, before), "step() has changed nothing");
    }
  };
  CHECK_NOTHROW(run_ranks(3, body, std::chrono::seconds(60), true));
}

TEST_CASE("Raw access to shared parameters throws; after synchronize() it uses a private copy") {
  const int stage = GENERATE(1, 2);
  CAPTURE(stage);
  auto body = [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model;
    Engine engine = make_engine(*model, net_config(stage), communicator);
    const at::Tensor weight = model->first->weight;
    for (int step = 0; step < 3; ++step) {
      expect_throws([&] { weight.data_ptr<float>(); }, "share", "before synchronize()");
      engine.synchronize();
      const at::Tensor expected = weight.detach().clone();
      auto* values = weight.data_ptr<float>();
      expect(std::memcmp(values, expected.const_data_ptr(), expected.nbytes()) == 0, "other values");
      values[3] = static_cast<float>(step + 1);  // every rank writes the same value
      communicator->barrier("all have written")->wait();
      expect(weight.data_ptr<float>() == values, "an operator has ended raw access");
      const at::Tensor loss = model->forward(sample(step, 0, rank), true).square().mean();
      engine.backward(loss * 0);
      engine.step();
      expect(weight.detach().clone().view(-1)[3].item<float>() == static_cast<float>(step + 1),
             "what was written through data_ptr() is lost");
      expect(engine.residency().resident_bytes == 0, "a copy is left after the step");
    }
  };
  CHECK_NOTHROW(run_ranks(2, body, std::chrono::seconds(60), true));
}

TEST_CASE("After the engine is destroyed parameters keep their values, and each rank has its own") {
  const int stage = GENERATE(1, 2);
  const bool written = GENERATE(false, true);
  CAPTURE(stage, written);
  auto body = [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model;
    torch::NoGradGuard no_grad;
    {
      Engine engine = make_engine(*model, net_config(stage), communicator);
      {
        at::AutoGradMode grad(true);
        engine.backward(model->forward(sample(0, 0, rank), true).square().mean());
      }
      engine.step();
      if (written) model->first->weight.fill_(rank + 1);
    }
    const at::Tensor last = model->last->weight.clone();
    if (written) expect((model->first->weight == rank + 1).all().item<bool>(), "the last write is lost");
    communicator->barrier("all engines have gone")->wait();
    model->last->weight.mul_(rank + 2);
    communicator->barrier("all have written")->wait();
    expect_same(model->last->weight, last * (rank + 2), "another rank's write");
    expect(model->last->weight.data_ptr<float>() != nullptr, "no raw access");
  };
  CHECK_NOTHROW(run_ranks(3, body, std::chrono::seconds(60), true));
}

}  // namespace zerorun::testing
