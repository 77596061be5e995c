// Engines that are made of parameters which an earlier engine has: the one that was made last has them, and
// the earlier one, if it still lives, refuses by name.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <optional>

#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "engine/zero_redundancy_optimizer.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

// Two layers, of which a second model may have the first one too.
struct Layers : torch::nn::Module {
  Layers(torch::nn::Linear given_trunk, uint64_t seed) {
    trunk = register_module("trunk", std::move(given_trunk));
    head = register_module("head", torch::nn::Linear(7, 3));
    fill(*head, seed);
  }
  at::Tensor loss(int step) {
    return head(torch::tanh(trunk(values({4, 5}, static_cast<uint64_t>(step))))).square().mean();
  }
  torch::nn::Linear trunk{nullptr}, head{nullptr};
};

torch::nn::Linear make_trunk() {
  torch::nn::Linear trunk(5, 7);
  fill(*trunk, 31);
  return trunk;
}

// At stage 3 every parameter comes and goes. With an optimizer of the program a step has one backward.
Engine engine_of(Layers& model, int stage, std::shared_ptr<Communicator> communicator, bool marks = false,
                 torch::optim::Optimizer* optimizer = nullptr) {
  const std::string own = R"("optimizer": {"type": "SGD", "params": {"lr": 0.1}}, )";
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, )" + (optimizer ? "" : own) +
      R"("gradient_accumulation_steps": )" + (optimizer ? "1" : "2") +
      R"(, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0,
                                 "stage": )" +
      std::to_string(stage) + "}}";
  InitializeOptions options;
  options.optimizer = optimizer;
  options.bucket_numel = 64;
  options.marks_gradients = marks;
  return make_engine(model, config, std::move(communicator), options);
}

// Two backwards for each step, half of the gradient each.
void train_plain(Layers& model, int from, int to) {
  for (int step = from; step < to; ++step) {
    for (int micro = 0; micro < 2; ++micro) (model.loss(2 * step + micro) / 2).backward();
    plain_step(model, 0.1);
  }
}

void train(Layers& model, Engine& engine, int from, int to) {
  for (int step = from; step < to; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      model.loss(2 * step + micro).backward();
      engine.step();
    }
  }
}

// Every call of the engine that has to do with gradients or parameters.
void expect_refused(Engine& engine, Layers& model, const std::filesystem::path& folder,
                    const std::string& name) {
  const std::string why = "has taken parameter " + name + " from this one";
  const at::Tensor weight = model.trunk->weight;
  ParameterStates states(engine);
  expect_throws([&] { engine.backward(model.loss(0)); }, why, "backward()");
  expect_throws([&] { engine.step(); }, why, "step()");
  expect_throws([&] { engine.zero_grad(); }, why, "zero_grad()");
  expect_throws([&] { engine.save_checkpoint(folder, "none"); }, why, "save_checkpoint()");
  expect_throws([&] { engine.load_checkpoint(folder, "none"); }, why, "load_checkpoint()");
  expect_throws([&] { engine.save_16bit_model(folder, "none.safetensors"); }, why, "save_16bit_model()");
  expect_throws([&] { engine.offload_states({OffloadedState::moments}); }, why, "offload_states()");
  expect_throws([&] { GatheredParameters scope(engine, {weight}); }, why, "GatheredParameters");
  expect_throws([&] { states.names(weight); }, why, "names()");
  expect_throws([&] { states.read(weight, "momentum_buffer"); }, why, "read()");
  expect_throws([&] { states.write(weight, "momentum_buffer", weight); }, why, "write()");
  expect_throws([&] { states.read_gradient(weight); }, why, "read_gradient()");
  expect_throws([&] { states.write_gradient(weight, weight); }, why, "write_gradient()");
  expect(!states.has_parameters(), "has_parameters()");
}

TEST_CASE("The engine that was made last trains the model, and the first one says so at every call") {
  const int stage = GENERATE(0, 1, 2, 3);
  const bool shares_memory = GENERATE(false, true);
  const bool marks = GENERATE(false, true);
  CAPTURE(stage, shares_memory, marks);
  const TemporaryFolder folder;
  CHECK_NOTHROW(run_ranks(
      2,
      [&](std::shared_ptr<Communicator> communicator) {
        at::set_num_threads(1);
        Layers model(make_trunk(), 5), plain(make_trunk(), 5);
        std::optional<Engine> first = engine_of(model, stage, communicator, marks);
        train(model, *first, 0, 2);
        model.loss(4).backward();  // a window that the first engine does not end
        Engine second = engine_of(model, stage, communicator, marks);
        train_plain(plain, 0, 2);
        expect_refused(*first, model, folder / "saved", "trunk.weight");
        train(model, second, 2, 4);
        train_plain(plain, 2, 4);
        expect_refused(*first, model, folder / "saved", "trunk.weight");
        first.reset();
        train(model, second, 4, 5);
        train_plain(plain, 4, 5);
        std::vector<at::Tensor> expected;
        for (const at::Tensor& parameter : plain.parameters()) expected.push_back(parameter.detach());
        check_close(model, expected);
      },
      std::chrono::seconds(60), shares_memory));
}

TEST_CASE("An engine that is made in a scope of the earlier one keeps the parameters when the scope ends") {
  const int stage = GENERATE(0, 1, 2, 3);
  const bool shares_memory = GENERATE(false, true);
  const bool modifies = GENERATE(false, true);
  CAPTURE(stage, shares_memory, modifies);
  CHECK_NOTHROW(run_ranks(
      2,
      [&](std::shared_ptr<Communicator> communicator) {
        Layers model(make_trunk(), 5), plain(make_trunk(), 5);
        Engine first = engine_of(model, stage, communicator);
        std::optional<Engine> second;
        {
          GatheredParameters scope(first, model.parameters(),
                                   modifies ? std::optional<int>(1) : std::nullopt);
          second = engine_of(model, stage, communicator);
        }
        train(model, *second, 0, 2);
        train_plain(plain, 0, 2);
        std::vector<at::Tensor> expected;
        for (const at::Tensor& parameter : plain.parameters()) expected.push_back(parameter.detach());
        check_close(model, expected);
      },
      std::chrono::seconds(60), shares_memory));
}

TEST_CASE("Two models that share a layer: the later engine has it, trained or frozen") {
  const int stage = GENERATE(1, 3);
  const bool frozen = GENERATE(false, true);
  CAPTURE(stage, frozen);
  const TemporaryFolder folder;
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    at::set_num_threads(1);
    torch::nn::Linear trunk = make_trunk(), plain_trunk = make_trunk();
    for (const at::Tensor& parameter : trunk->parameters()) parameter.set_requires_grad(!frozen);
    for (const at::Tensor& parameter : plain_trunk->parameters()) parameter.set_requires_grad(!frozen);
    Layers one(trunk, 5), other(trunk, 6), plain(plain_trunk, 6);
    Engine first = engine_of(one, stage, communicator);
    Engine second = engine_of(other, stage, communicator);
    const bool is_whole = frozen && stage < 3;  // such a parameter is in no bucket, so both may have it
    if (is_whole) {
      train(one, first, 0, 2);
    } else {
      expect_refused(first, one, folder / "saved", "trunk.weight");
    }
    train(other, second, 0, 2);
    train_plain(plain, 0, 2);
    std::vector<at::Tensor> expected;
    for (const at::Tensor& parameter : plain.parameters()) expected.push_back(parameter.detach());
    check_close(other, expected);
  }));
}

TEST_CASE("An engine that is gone, or has been moved, is in nobody's way") {
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    at::set_num_threads(1);
    for (const int stage : {0, 1, 2}) {
      Layers model(make_trunk(), 5);
      for (int round = 0; round < 3; ++round) {
        Engine engine = engine_of(model, stage, communicator);
        Engine moved = std::move(engine);
        train(model, moved, round, round + 1);
      }
    }
  }));
}

TEST_CASE("Engines of initialize() and ZeroRedundancyOptimizers take parameters from each other") {
  CHECK_NOTHROW(run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Layers model(make_trunk(), 5);
    torch::optim::SGD sgd(model.parameters(), 0.1);
    const auto zero = enable_zero(model, sgd, 1, communicator);
    model.loss(0).backward();
    Engine engine = engine_of(model, 1, communicator);
    expect_throws([&] { zero->step(); }, "has taken parameter trunk.weight", "step()");
    train(model, engine, 0, 1);
  }));
}

TEST_CASE("The optimizer of an engine that lives is refused") {
  CHECK_NOTHROW(run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Layers model(make_trunk(), 5);
    torch::optim::SGD sgd(model.parameters(), 0.1);
    std::optional<Engine> engine = engine_of(model, 2, communicator, false, &sgd);
    const auto again = [&] { return engine_of(model, 2, communicator, false, &sgd); };
    expect_throws([&] { again(); }, "is that of another engine", "initialize() with the same optimizer");
    engine->backward(model.loss(0));
    engine->step();
    engine.reset();
    again();
  }));
}

TEST_CASE("A model whose stage 3 engine is gone is refused on all ranks, by a parameter's name") {
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Layers model(make_trunk(), 5);
    { Engine engine = engine_of(model, 3, communicator); }
    expect_throws([&] { engine_of(model, 3, communicator); }, "parameter trunk.weight has no values",
                  "initialize()");
  }));
}

}  // namespace
}  // namespace zerorun::testing
