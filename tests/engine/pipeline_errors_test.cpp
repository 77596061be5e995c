// Tests of what a divided model refuses, and of failures within a window, which end it on all ranks.
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/pipeline_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stderr_capture.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

// All ranks throw `text` when they make an engine of `pipeline_of_rank(model)`.
template <typename Change>
void check_refused(const Change& change, const std::string& text, const MeshSizes& mesh = {1, 1, 2}) {
  CAPTURE(text);
  CHECK_NOTHROW(run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(kSmall);
    Pipeline pipeline = pipeline_of(model);
    change(pipeline, model);
    expect_throws([&] { divided_engine(model, decoder_config(1, kSgd), mesh, communicator, pipeline); }, text,
                  text);
  }));
}

}  // namespace

TEST_CASE("Lists of layers that do not make up the model are refused, with the name that is wrong") {
  check_refused([](Pipeline& pipeline, Decoder&) { pipeline.layers.resize(3); },
                "the pipeline has 3 layers, and the mesh has 4 pipeline stages", {1, 1, 4});
  check_refused([](Pipeline& pipeline, Decoder&) { pipeline.layers[2].tensors.pop_back(); },
                "layers.1.down.bias is in no layer of the pipeline");
  check_refused([](Pipeline& pipeline,
                   Decoder&) { pipeline.layers[1].tensors.push_back(at::ones({3}).requires_grad_()); },
                "layer layers.0 of the pipeline has a tensor of sizes [3] that is no parameter or buffer");
  check_refused([](Pipeline& pipeline, Decoder&) { pipeline.layers[2].name = "layers.0"; },
                "two layers have the name layers.0");
  check_refused([](Pipeline& pipeline, Decoder&) { pipeline.loss = nullptr; }, "Pipeline::loss is not set");
  check_refused([](Pipeline& pipeline,
                   Decoder&) { pipeline.cut = {.by = PipelineCut::By::names, .firsts = {"layers.9"}}; },
                "there is no layer layers.9 behind layer embedding");
  check_refused(
      [](Pipeline& pipeline, Decoder&) {
        pipeline.cut = {.by = PipelineCut::By::seconds, .seconds = {1, 2}};
      },
      "PipelineCut::seconds: expected 6 numbers");
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    Decoder model(kSmall);
    expect_throws(
        [&] {
          decoder_engine(*model, decoder_config(1, kSgd), {1, 1, 2}, communicator, {});
        },
        "no list of layers says how they divide the model", "a mesh of stages without layers");
  }));
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    Decoder model(kSmall);
    Pipeline pipeline = pipeline_of(model);
    if (communicator->rank() == 1) pipeline.layers[1].name = "another";
    expect_throws(
        [&] {
          divided_engine(model, decoder_config(1, kSgd), {1, 1, 2}, communicator, pipeline);
        },
        "rank 1 has another model or another config than rank 0", "other names of layers");
  }));
}

TEST_CASE("Calls that a divided model does not have are refused, and training goes on") {
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    Decoder model(kSmall);
    Engine engine = divided_engine(model, decoder_config(2, kSgd, 2), {1, 1, 2}, communicator);
    const at::Tensor loss = at::ones({}, at::requires_grad());
    expect_throws([&] { engine.backward(loss); }, "call engine.train_batch()", "backward()");
    expect_throws([&] { engine.step(); }, "call engine.train_batch()", "step()");
    expect_throws([&] { engine.train_batch({}); }, "without micro-batches", "no micro-batches");
    {
      torch::NoGradGuard no_grad;
      expect_throws([&] { engine.train_batch(window_of(kSmall, 0, 2, 0)); }, "with autograd off",
                    "autograd is off");
    }
    {
      const auto scope = engine.no_sync();
      expect_throws([&] { engine.train_batch(window_of(kSmall, 0, 2, 0)); }, "no_sync", "no_sync()");
    }
    engine.train_batch(window_of(kSmall, 0, 2, 0));
    expect(engine.global_steps() == 1, "one step");
  }));
  CHECK_NOTHROW(run_ranks(1, [](std::shared_ptr<Communicator> communicator) {
    Decoder model(kSmall);
    Engine engine = decoder_engine(*model, decoder_config(1, kSgd), {.data = 1}, communicator, {});
    expect_throws([&] { engine.train_batch(window_of(kSmall, 0, 1, 0)); }, "without a list of layers",
                  "no pipeline");
  }));
}

TEST_CASE("Layers that do not fit together: the error has both names and what passes between them") {
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Decoder model(kSmall);
    Pipeline pipeline = pipeline_of(model);
    pipeline.layers[2].forward = [forward = pipeline.layers[2].forward](const Tensors& inputs) {
      return Tensors{forward(inputs)[0].slice(-1, 0, 7)};
    };
    Engine engine =
        divided_engine(model, decoder_config(1, kSgd, 2), {1, 1, 2}, std::move(communicator), pipeline);
    expect_throws([&] { engine.train_batch(window_of(kSmall, 0, 2, 0)); },
                  rank == 1 ? "in layer layers.2 of pipeline stage 1, which layer layers.1 gives 1 tensor "
                              "(Float [2, 7, 7])"
                            : "rank 1 cannot go on",
                  "stage " + std::to_string(rank));
  }));
}

TEST_CASE("With an example initialize() finds layers that do not fit, and else changes nothing") {
  const int stage = GENERATE(1, 3);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const std::string config = decoder_config(stage, kSgd, 2);
    const auto trained = [&](bool has_example) {
      Decoder model(kSmall);
      Pipeline pipeline = pipeline_of(model);
      if (has_example) pipeline.example = window_of(kSmall, 9, 1, 0)[0];
      Engine engine = divided_engine(model, config, {1, 1, 2}, communicator, pipeline);
      expect(model->is_training() && engine.global_samples() == 0, "nothing is trained");
      return train_divided(engine, model, 2, 0);
    };
    const TrainedDecoder with = trained(true);
    const TrainedDecoder without = trained(false);
    expect(with.losses == without.losses && with.norms == without.norms, "the same training");

    Decoder model(kSmall);
    Pipeline pipeline = pipeline_of(model);
    pipeline.example = window_of(kSmall, 0, 1, 0)[0];
    pipeline.layers[2].forward = [forward = pipeline.layers[2].forward](const Tensors& inputs) {
      return Tensors{forward(inputs)[0].slice(-1, 0, 7)};
    };
    expect_throws(
        [&] {
          divided_engine(model, config, {1, 1, 2}, communicator, pipeline);
        },
        communicator->rank() == 1 ? "in layer layers.2 of pipeline stage 1, which layer layers.1 gives"
                                  : "rank 1 cannot go on",
        "initialize()");
  }));
}

TEST_CASE("An exception in any phase of a window ends it on all ranks, long before the deadline") {
  const auto begin = std::chrono::steady_clock::now();
  const bool in_forward = GENERATE(true, false);
  const int culprit = GENERATE(0, 2, 5);  // of data 2 x pipeline 3
  const int micro_batch = GENERATE(0, 3);
  const int stage = GENERATE(1, 3);
  CAPTURE(in_forward, culprit, micro_batch, stage);
  struct Thrower : torch::autograd::Function<Thrower> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 1; }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list) {
      throw std::runtime_error("a fault of the program");
    }
  };
  CHECK_NOTHROW(run_ranks(6, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Decoder model(kSmall);
    Pipeline pipeline = pipeline_of(model);
    int calls = 0;
    for (PipelineLayer& layer : pipeline.layers) {
      if (layer.name != "embedding" && layer.name != "layers.1" && layer.name != "head") continue;
      layer.forward = [&, forward = layer.forward](const Tensors& inputs) {
        const bool is_it = rank == culprit && calls++ == micro_batch;
        if (is_it && in_forward) throw std::runtime_error("a fault of the program");
        Tensors outputs = forward(inputs);
        if (is_it) outputs[0] = Thrower::apply(outputs[0]);
        return outputs;
      };
    }
    Engine engine =
        divided_engine(model, decoder_config(stage, kSgd, 4), {2, 1, 3}, std::move(communicator), pipeline);
    expect_throws([&] { engine.train_batch(window_of(kSmall, 0, 4, engine.mesh().coordinates().data)); },
                  "a fault of the program", "rank " + std::to_string(rank));
    expect_throws([&] { engine.train_batch(window_of(kSmall, 0, 4, 0)); },
                  "after a window of the pipeline that failed", "the next window");
  }));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("A wait that reaches its deadline names the micro-batch, the direction and the stages") {
  const bool in_first = GENERATE(true, false);  // the stage that is late
  CAPTURE(in_first);
  const std::string expected = in_first ? "activations of micro-batch 3 of 4, stage 0 to 1"
                                        : "gradients of micro-batch 2 of 4, stage 1 to 0";
  CHECK_NOTHROW(run_ranks(
      2,
      [&](std::shared_ptr<Communicator> communicator) {
        Decoder model(kSmall);
        Pipeline pipeline = pipeline_of(model);
        int calls = 0;
        PipelineLayer& layer = in_first ? pipeline.layers.front() : pipeline.layers.back();
        layer.forward = [&, forward = layer.forward](const Tensors& inputs) {
          if (calls++ == (in_first ? 2 : 1)) std::this_thread::sleep_for(std::chrono::milliseconds(4500));
          return forward(inputs);
        };
        Engine engine =
            divided_engine(model, decoder_config(1, kSgd, 4), {1, 1, 2}, std::move(communicator), pipeline);
        expect_throws([&] { engine.train_batch(window_of(kSmall, 0, 4, 0)); }, expected, "the deadline");
      },
      std::chrono::seconds(3)));
}

TEST_CASE("Ranks with other numbers of micro-batches are told so") {
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Decoder model(kSmall);
    Engine engine = divided_engine(model, decoder_config(1, kSgd, 4), {1, 1, 2}, std::move(communicator));
    expect_throws([&] { engine.train_batch(window_of(kSmall, 0, 3 + rank, 0)); },
                  "rank 0 gives 3 micro-batches, and rank 1 gives 4", "rank " + std::to_string(rank));
  }));
}

TEST_CASE("A rank that refuses a window: all ranks throw its error at once, and training goes on") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK_NOTHROW(run_ranks(4, [](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Decoder model(kSmall);
    Engine engine = divided_engine(model, decoder_config(1, kSgd, 2), {2, 1, 2}, std::move(communicator));
    const std::vector<MicroBatch> window = window_of(kSmall, 0, 2, engine.mesh().coordinates().data);
    const std::vector<MicroBatch> none;
    expect_throws([&] { engine.train_batch(rank == 3 ? none : window); }, "without micro-batches", "none");
    expect_throws([&] { engine.eval_batch(rank == 0 ? none : window); }, "without micro-batches", "none");
    {
      const at::AutoGradMode mode(rank != 2);
      expect_throws([&] { engine.train_batch(window); }, "with autograd off", "autograd off on one rank");
    }
    const std::vector<MicroBatch> longer = window_of(kSmall, 0, 3, 0);
    expect_throws([&] { engine.train_batch(rank % 2 == 1 ? longer : window); },
                  "rank 0 gives 2 micro-batches, and rank 1 gives 3", "other numbers on data ranks");
    const auto frozen = model->named_parameters()[rank < 2 ? "layers.0.q.weight" : "head.weight"];
    if (rank == 1) frozen.requires_grad_(false);
    expect_throws([&] { engine.train_batch(window); }, "was frozen after initialize()", "frozen since");
    frozen.requires_grad_(true);
    engine.train_batch(window);
    expect(engine.global_steps() == 1, "one step");
  }));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("A layer that uses a parameter of another stage without listing it gets an error") {
  const DecoderOptions tied = {.tied = true, .layers = 2};
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Decoder model(tied);
    Pipeline pipeline = pipeline_of(model);
    std::erase_if(pipeline.layers.back().tensors, [&](const at::Tensor& tensor) {
      return tensor.is_same(model->named_parameters()["embedding.weight"]);
    });
    Engine engine =
        divided_engine(model, decoder_config(1, kSgd, 2), {1, 1, 2}, std::move(communicator), pipeline);
    expect_throws([&] { engine.train_batch(window_of(tied, 0, 2, 0)); },
                  "embedding.weight belongs to pipeline stage 0", "rank " + std::to_string(rank));
  }));
}

TEST_CASE("A loss that does not require grad is refused") {
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Decoder model(kSmall);
    Pipeline pipeline = pipeline_of(model);
    pipeline.loss = [loss = pipeline.loss](const Tensors& outputs, const Tensors& labels) {
      return loss(outputs, labels).detach();
    };
    Engine engine =
        divided_engine(model, decoder_config(2, kSgd, 2), {1, 1, 2}, std::move(communicator), pipeline);
    expect_throws([&] { engine.train_batch(window_of(kSmall, 0, 2, 0)); },
                  "the loss of the pipeline does not require grad", "rank " + std::to_string(rank));
  }));
}

TEST_CASE("A value that is not finite on one stage: all stages skip the step, and the log names it") {
  const int culprit = GENERATE(0, 1);
  const int stage = GENERATE(0, 2, 3);
  CAPTURE(culprit, stage);
  StderrCapture capture;
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Decoder model(kSmall);
    Pipeline pipeline = pipeline_of(model);
    int steps = 0;
    const std::string name = culprit == 0 ? "layers.0" : "layers.3";
    for (PipelineLayer& layer : pipeline.layers) {
      if (layer.name != name) continue;
      // The gradient of one bias becomes infinite on one data rank; nothing else changes.
      layer.forward = [&, forward = layer.forward](const Tensors& inputs) {
        Tensors outputs = forward(inputs);
        if (steps != 1 || rank % 2 != 1) return outputs;
        const at::Tensor bias = model->named_parameters()[name + ".o.bias"];
        const at::Tensor infinite = bias * std::numeric_limits<double>::infinity();
        outputs[0] = outputs[0] + (infinite - infinite.detach()).nan_to_num(0).sum() * 0;
        return outputs;
      };
    }
    Engine engine =
        divided_engine(model, decoder_config(stage, kSgd, 2), {2, 1, 2}, std::move(communicator), pipeline);
    for (; steps < 3; ++steps) {
      engine.train_batch(window_of(kSmall, steps, 2, engine.mesh().coordinates().data));
      expect(engine.was_step_applied() == (steps != 1), "which steps are applied");
    }
    expect(engine.skipped_steps() == 1, "one step is skipped");
  }));
  CHECK_THAT(capture.text(),
             Contains("step 2 skipped: the gradient of parameter layers." + std::to_string(culprit * 3) +
                      ".o.bias on rank " + std::to_string(2 * culprit + 1)));
}

TEST_CASE("Parameter groups may have this stage's parameters only, and agree on tied ones") {
  const DecoderOptions tied = {.tied = true, .layers = 2};
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const auto engine_with = [&](Decoder& model, bool agrees) {
      InitializeOptions options;
      options.communicator = communicator;
      options.mesh = MeshSizes{1, 1, 2};
      options.pipeline = pipeline_of(model);
      const int stage = communicator->rank();
      options.parameter_groups.resize(2);
      options.parameter_groups[0].lr = 0.1;
      options.parameter_groups[1].lr = 0.2;
      for (const int layer : {2 * stage, 2 * stage + 1}) {
        for (const at::Tensor& tensor : options.pipeline->layers[layer].tensors) {
          const bool is_tied = tensor.is_same(model->named_parameters()["embedding.weight"]);
          const int group = is_tied ? (agrees ? 0 : stage) : tensor.dim() - 1;
          options.parameter_groups[group].parameters.push_back(tensor);
        }
      }
      return initialize(
          *model,
          parse_config(decoder_config(1, kSgd), "test config", {.world_size = 2, .mesh = options.mesh}),
          options);
    };
    Decoder model(tied);
    expect_throws([&] { engine_with(model, false); },
                  "embedding.weight is in parameter group 0 on pipeline stage 0",
                  "a tied parameter in two groups");
    Engine engine = engine_with(model, true);
    engine.train_batch(window_of(tied, 0, 1, 0));
    expect(engine.get_lr() == std::vector<double>{0.1, 0.2}, "the rates of both groups");
  }));
}

TEST_CASE("Parameters of another stage: the error says so") {
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Decoder model(kSmall);
    Engine engine = divided_engine(model, decoder_config(3, kSgd), {1, 1, 2}, std::move(communicator));
    const at::Tensor other = model->named_parameters()[rank == 0 ? "head.weight" : "embedding.weight"];
    expect_throws([&] { GatheredParameters scope(engine, {other}); }, "it is of another pipeline stage",
                  "GatheredParameters");
  }));
}

}  // namespace zerorun::testing
