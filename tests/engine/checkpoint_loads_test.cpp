// What a load brings back, and what it leaves as it is: tied weights, accumulation windows, counters,
// parameters that a checkpoint lacks, and the program's writes.
#include <catch2/catch.hpp>

#include "checkpoint/saved_state.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/engine/state_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;

TEST_CASE("Tied weights are saved once, and a model without the tie reads them into both parameters") {
  struct Pair : torch::nn::Module {
    explicit Pair(bool ties) {
      a = register_parameter("a", torch::arange(30, at::kFloat).reshape({5, 6}));
      b = register_parameter("b", ties ? a : torch::zeros({5, 6}));
    }
    at::Tensor a, b;
  };
  const TemporaryFolder folder;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto engine_of = [&](Pair& pair) {
      return make_engine(pair, R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"},
                                   "zero_optimization": {"stage": 2}})",
                         communicator);
    };
    Pair tied(true);
    Pair other(true);
    Pair apart(false);
    Engine writer = engine_of(tied);
    writer.save_checkpoint(folder / "a", "", {.asynchronous = false});
    const Manifest manifest = SavedState(local_file_system(), folder / "a/global_step0").manifest();
    expect(manifest.parameters.at("a").aliases == std::vector<std::string>{"b"}, "aliases");
    expect(!manifest.parameters.contains("b"), "b is there by itself");
    for (Pair* pair : {&other, &apart}) {
      Engine reader = engine_of(*pair);
      {
        const torch::NoGradGuard no_grad;
        pair->a.zero_();
      }
      reader.load_checkpoint(folder / "a");
      reader.synchronize();
      const torch::NoGradGuard no_grad;
      expect(pair->a.flatten()[29].item<float>() == 29 && pair->b.flatten()[29].item<float>() == 29,
             "values");
    }
  });
}

TEST_CASE("After a load with other accumulation steps a whole window begins") {
  const TemporaryFolder folder;
  const StateCase adam = all_state_cases().front();
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam, 2, "fp32", communicator, R"(, "gradient_accumulation_steps": 2)");
    for (int micro = 0; micro < 6; ++micro) training.step(micro);
    training.engine->save_checkpoint(folder / "a");
  });
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam, 2, "fp32", communicator, R"(, "gradient_accumulation_steps": 4)");
    training.engine->load_checkpoint(folder / "a");
    for (int micro = 0; micro < 4; ++micro) {
      expect(training.engine->is_gradient_accumulation_boundary() == (micro == 3), "the window's end");
      training.step(micro);
    }
    expect(training.engine->global_steps() == 4, "steps");
    training.engine->save_checkpoint(folder / "a");
  });
}

TEST_CASE(
    "A load without counters keeps the moments' step count; a fixed loss scale stays that of the config") {
  const TemporaryFolder folder;
  const StateCase adam = all_state_cases().front();
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining writer(adam, 1, "fp16", communicator);
    for (int step = 0; step < 3; ++step) writer.step(step);
    writer.engine->save_checkpoint(folder / "a", "", {.asynchronous = false});

    StateTraining reader(adam, 1, "fp16", communicator);
    reader.engine->load_checkpoint(folder / "a", "", {.counters = false});
    expect(reader.state->optimizer->steps() == 3, "the moments' steps");
    expect(reader.engine->global_steps() == 0, "the engine's own");

    StateTraining fixed(adam, 1, "fp16", communicator);
    fixed.state->scaler.emplace(LossScaleConfig{.fixed = 128.0});
    fixed.engine->load_checkpoint(folder / "a");
    expect(fixed.engine->loss_scale() == 128, "a fixed scale");
  });
}

TEST_CASE("A load that is not strict leaves parameters unchanged that the checkpoint lacks") {
  const TemporaryFolder folder;
  const StateCase sgd = all_state_cases()[3];
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(sgd, stage, "bf16", communicator);
    training.engine->save_checkpoint(folder / "a", "", {.asynchronous = false});
    if (communicator->rank() == 0) {
      Manifest manifest = SavedState(local_file_system(), folder / "a/global_step0").manifest();
      manifest.parameters.erase("last");
      for (auto& [name, file] : manifest.files)
        std::erase_if(file.ranges, [](const StateRange& range) { return range.parameter == "last"; });
      folder.write("a/global_step0/manifest.json", to_json(manifest));
    }
    communicator->barrier("changed")->wait();
    {
      const torch::NoGradGuard no_grad;
      training.model->last.fill_(0.25);
      training.model->first.fill_(0.5);
    }
    expect_throws([&] { training.engine->load_checkpoint(folder / "a"); }, "last", "a strict load");
    training.engine->load_checkpoint(folder / "a", "", {.strict = false});
    const auto all_are = [](const at::Tensor& tensor, double value) {
      const torch::NoGradGuard no_grad;
      return (tensor == value).all().item<bool>();
    };
    expect(all_are(training.model->last, 0.25), "what the checkpoint has not");
    expect(!all_are(training.model->first, 0.5), "what it has");
    training.engine->backward(training.model->loss(torch::zeros({1, 61}).to(at::kBFloat16)));
    training.engine->step();
    expect(all_are(training.model->last, 0.25), "the master weights of what it has not");
  }));
}

TEST_CASE("A checkpoint contains the program's writes: by operators, in scopes and by raw access") {
  const TemporaryFolder folder;
  const StateCase sgd = all_state_cases()[3];
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE("fp32", "bf16");
  const bool shares_memory = GENERATE(false, true);
  CAPTURE(stage, precision, shares_memory);
  CHECK_NOTHROW(run_ranks(
      2,
      [&](std::shared_ptr<Communicator> communicator) {
        StateTraining training(sgd, stage, precision, communicator);
        torch::NoGradGuard no_grad;
        {
          GatheredParameters scope(*training.engine, {training.model->last}, 0);
          if (communicator->rank() == 0) training.model->last.fill_(0.25);
        }
        if (stage < 3) {
          training.engine->synchronize();
          training.model->bias.fill_(0.75);
        }
        training.model->first.fill_(0.5);
        training.engine->save_checkpoint(folder / "a");
        training.model->first.zero_();
        training.engine->load_checkpoint(folder / "a");
        const auto is = [](const at::Tensor& tensor, double value) {
          return (tensor == value).all().item<bool>();
        };
        expect(is(training.model->first, 0.5), "an operator's");
        expect(is(training.model->last, 0.25), "a scope's");
        expect(stage == 3 || is(training.model->bias, 0.75), "a raw one");
      },
      std::chrono::seconds(60), shares_memory));
}

}  // namespace zerorun::testing
