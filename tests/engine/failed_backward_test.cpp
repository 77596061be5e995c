// Backwards that throw: without other gradients they are as if they had not begun; among gradients of earlier
// backwards the next call says what to do. Nothing hangs.
#include <torch/torch.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "engine/parameter_states.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

enum class Fails { no, early, late };  // early: before the first gradient of a parameter

struct ChainImpl : torch::nn::Module {
  ChainImpl() {
    for (int index = 0; index < 3; ++index)
      layers.push_back(register_module("layer" + std::to_string(index), torch::nn::Linear(6, 6)));
    fill(*this, 17);
  }
  at::Tensor loss(int sample, Fails fails = Fails::no) {
    at::Tensor x = values({3, 6}, static_cast<uint64_t>(sample));
    for (size_t index = 0; index < layers.size(); ++index) {
      x = torch::tanh(layers[index]->forward(x));
      if ((fails == Fails::late && index == 0) || (fails == Fails::early && index == 2))
        x.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("on purpose"); });
    }
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Chain);

// One rank's training, with engine.backward() or loss.backward().
struct Training {
  Training(int stage, int accumulation, bool is_plain, bool has_marks,
           std::shared_ptr<Communicator> communicator)
      : is_plain(is_plain), engine(make(stage, accumulation, has_marks, std::move(communicator))) {}

  Engine make(int stage, int accumulation, bool has_marks, std::shared_ptr<Communicator> communicator) {
    InitializeOptions options;
    options.marks_gradients = has_marks;
    options.bucket_numel = 48;  // a bucket for each layer
    const std::string config = R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
                               std::to_string(accumulation) +
                               R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
                                   "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
                               std::to_string(stage) + "}}";
    return make_engine(*model, config, std::move(communicator), options);
  }
  void backward(int sample, Fails fails = Fails::no) {
    const at::Tensor loss = model->loss(sample, fails);
    if (is_plain) {
      loss.backward();
    } else {
      engine.backward(loss);
    }
  }
  void fail(int sample, Fails fails) {
    expect_throws([&] { backward(sample, fails); }, "on purpose", "the backward");
  }
  void train(int from, int to) {
    for (int sample = from; sample < to; ++sample) {
      backward(sample);
      engine.step();
    }
  }
  std::vector<at::Tensor> result() { return copies_of(*model); }

  Chain model;
  bool is_plain;
  Engine engine;
};

// Trains six micro-steps that nothing disturbs.
std::vector<at::Tensor> undisturbed(Training training) {
  training.train(0, 6);
  return training.result();
}

// Runs `body` on 2 ranks, for every stage and both ways to start a backward, with and without marks.
void check_every_way(
    const std::function<void(const std::function<Training(int accumulation)>&, int rank)>& body) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool is_plain : {false, true}) {
      for (const bool has_marks : {false, true}) {
        INFO("stage " << stage << (is_plain ? ", loss.backward()" : ", engine.backward()")
                      << (has_marks ? ", marks" : ""));
        CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
          body(
              [&](int accumulation) {
                return Training(stage, accumulation, is_plain, has_marks, communicator);
              },
              communicator->rank());
        }));
      }
    }
  }
}

}  // namespace

TEST_CASE("A backward that throws, without gradients of earlier ones, is as if it had not begun") {
  check_every_way([](const auto& make, int) {
    for (const Fails fails : {Fails::early, Fails::late}) {
      const std::vector<at::Tensor> expected = undisturbed(make(2));
      Training training = make(2);
      training.train(0, 2);
      training.fail(70, fails);
      training.train(2, 4);
      training.fail(71, fails);
      expect_throws([&] { training.engine.step(); }, "step() without an earlier backward", "step()");
      training.train(4, 6);
      expect(training.engine.global_steps() == 3, "no step more");
      expect_same(training.result(), expected, "the parameters");
    }
  });
}

TEST_CASE("A backward that throws before its first gradient leaves those of earlier ones as they are") {
  check_every_way([](const auto& make, int) {
    const std::vector<at::Tensor> expected = undisturbed(make(3));
    Training training = make(3);
    training.train(0, 1);
    training.fail(70, Fails::early);  // at stages 2 and 3 the other ranks may wait for its reductions
    training.train(1, 2);
    training.backward(2);
    expect(training.engine.is_gradient_accumulation_boundary(), "the count of micro-steps");
    training.engine.step();
    training.train(3, 6);
    expect_same(training.result(), expected, "the parameters");
  });
}

TEST_CASE("A backward that throws among gradients of earlier ones is an error until they are dropped") {
  check_every_way([](const auto& make, int) {
    std::vector<at::Tensor> expected;
    {
      Training training = make(4);
      training.train(0, 2);
      training.engine.zero_grad();
      training.train(2, 8);
      expected = training.result();
    }
    for (const bool by_marks : {false, true}) {
      Training training = make(4);
      const bool has_marks = training.model->layers[0]->weight.grad().defined();
      training.train(0, 2);
      training.fail(70, Fails::late);
      for (int time = 0; time < 2; ++time) {
        for (const auto& call : std::vector<std::function<void()>>{
                 [&] { training.backward(71); }, [&] { training.engine.step(); },
                 [&] { ParameterStates(training.engine).read_gradient(training.model->layers[0]->weight); }})
          expect_throws(call, "drop them all with engine.zero_grad(), on all ranks", "a call behind it");
      }
      expect_throws([&] { training.engine.save_checkpoint("/nowhere"); },
                    "drop them all with engine.zero_grad()", "save_checkpoint()");
      const bool is_marked = training.model->layers[2]->weight.grad().defined();
      if (by_marks && is_marked) {
        training.model->zero_grad();
      } else {
        training.engine.zero_grad();
      }
      expect(!has_marks, "no mark before the first backward");
      training.train(2, 8);
      expect(training.engine.global_steps() == 2, "steps where they would be");
      expect_same(training.result(), expected, "the parameters");
    }
  });
}

TEST_CASE("A backward that throws before its first gradient leaves the bits of the step as they would be") {
  check_every_way([](const auto& make, int rank) {
    std::vector<at::Tensor> expected;
    for (const bool fails : {false, true}) {
      Training training = make(3);
      for (int micro = 0; micro < 6; ++micro) {
        if (fails && micro % 3 > 0) training.fail(70 + rank, Fails::early);
        training.train(10 * rank + micro, 10 * rank + micro + 1);
      }
      if (!fails) expected = training.result();
      if (fails) expect_same(training.result(), expected, "the parameters");
    }
  });
}

TEST_CASE("If a backward throws on one rank only and all ranks drop, training goes on") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool shares_memory : {false, true}) {
      for (const bool is_plain : {false, true}) {
        for (const Fails fails : {Fails::early, Fails::late}) {
          // There the other rank waits in its backward for gathers and reductions.
          if (stage >= 2 && fails == Fails::early) continue;
          for (const int held : {0, 1, 3}) {
            INFO("stage " << stage << (shares_memory ? ", shared memory" : "")
                          << (is_plain ? ", loss.backward()" : "")
                          << (fails == Fails::early ? ", early" : ", late") << ", behind " << held);
            // An early one at the boundary does not reduce, for which the other rank would wait.
            if (fails == Fails::early && is_plain && held == 3) continue;
            CHECK_NOTHROW(run_ranks(
                2,
                [&](std::shared_ptr<Communicator> communicator) {
                  std::vector<at::Tensor> expected;
                  for (const bool has_thrown : {false, true}) {
                    Training training(stage, 4, is_plain, /*has_marks=*/false, communicator);
                    training.train(0, 4 + held);
                    if (!has_thrown || communicator->rank() == 0) {
                      training.backward(70);
                    } else {
                      training.fail(70, fails);
                    }
                    training.engine.zero_grad();
                    training.train(4 + held, 12);
                    expect(training.engine.global_steps() == 3, "steps where they would be");
                    if (!has_thrown) expected = training.result();
                    if (has_thrown) expect_same(training.result(), expected, "the parameters");
                  }
                },
                std::chrono::seconds(20), shares_memory));
          }
        }
      }
    }
  }
}

TEST_CASE("After a backward that threw and left nothing, saves, loads and parameter states work") {
  const TemporaryFolder folder;
  check_every_way([&](const auto& make, int) {
    const std::vector<at::Tensor> expected = undisturbed(make(2));
    Training training = make(2);
    training.train(0, 4);
    ParameterStates states(training.engine);
    const at::Tensor& weight = training.model->layers[0]->weight;
    const at::Tensor momentum = states.read(weight, "momentum_buffer");
    const std::vector<std::function<void()>> calls{
        [&] { training.engine.save_checkpoint(folder / "checkpoints", "a"); },
        [&] { training.engine.load_checkpoint(folder / "checkpoints", "a"); },
        [&] { training.engine.save_16bit_model(folder / "checkpoints", "model.safetensors"); },
        [&] { expect_same(states.read(weight, "momentum_buffer"), momentum, "the momentum"); },
        [&] { expect(states.names(weight).size() == 1, "the names"); },
        [&] { states.write(weight, "momentum_buffer", momentum); },
        [&] {
          training.engine.offload_states();
          training.engine.reload_states();
        }};
    for (const Fails fails : {Fails::late, Fails::early}) {
      for (const auto& call : calls) {
        training.fail(70, fails);
        call();
      }
    }
    training.train(4, 6);
    expect_same(training.result(), expected, "the parameters");
  });
}

TEST_CASE("A backward that throws early among gradients of earlier ones can be followed by a save") {
  const TemporaryFolder folder;
  check_every_way([&](const auto& make, int) {
    std::vector<at::Tensor> expected;
    {
      Training training = make(3);
      training.train(0, 2);
      training.fail(70, Fails::early);
      training.engine.save_checkpoint(folder / "checkpoints", "a");
      training.train(2, 6);
      expected = training.result();
    }
    Training training = make(3);
    training.engine.load_checkpoint(folder / "checkpoints", "a");
    training.train(2, 6);
    expect_same(training.result(), expected, "the parameters");
  });
}

TEST_CASE("If a backward throws on one rank only, no rank waits for ever, and none steps with a part") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool drops : {false, true}) {
      INFO("stage " << stage << (drops ? ", dropped" : ", not dropped"));
      std::array<std::string, 2> errors;
      std::array<int64_t, 2> steps = {};
      const auto body = [&](std::shared_ptr<Communicator> communicator) {
        const int rank = communicator->rank();
        Training training(stage, 3, /*is_plain=*/false, /*has_marks=*/false, communicator);
        try {
          training.train(0, 1);
          if (rank == 1) {
            training.fail(70, Fails::late);
            if (drops) training.engine.zero_grad();
          }
          training.train(1, 3);
        } catch (const std::exception& error) {
          errors[rank] = error.what();
          steps[rank] = training.engine.global_steps();
          throw;
        }
      };
      CHECK_THROWS(run_ranks(2, body, std::chrono::seconds(2)));
      CAPTURE(errors[0], errors[1]);
      CHECK(!errors[0].empty());
      CHECK(!errors[1].empty());
      CHECK(steps == std::array<int64_t, 2>{});
      if (!drops) CHECK_THAT(errors[1], Catch::Matchers::Contains("drop them all with engine.zero_grad()"));
    }
  }
}

}  // namespace zerorun::testing
