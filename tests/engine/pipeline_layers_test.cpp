// Tests of the layers of a pipeline: what they may pass, write, freeze and recompute, and their measurement.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "pipeline/layer_times.h"
#include "tests/engine/pipeline_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {

namespace {

// Four layers that pass a mask, positions and a value that some layers write in place.
struct Mixed : torch::nn::Module {
  explicit Mixed(uint64_t seed) {
    at::Generator generator = at::detail::createCPUGenerator(seed);
    for (int index = 0; index < 4; ++index)
      register_parameter("weight" + std::to_string(index), at::randn({5, 5}, generator) * 0.3);
    register_buffer("offset", at::full({5}, 0.25));
  }
  Tensors layer(int index, const Tensors& inputs) {
    at::Tensor x = inputs[0];
    if (index % 2 == 1) x.mul_(1.5).add_(0.125);  // in place, as an operator after another layer may
    x = at::tanh(x.mm(named_parameters()["weight" + std::to_string(index)]) + named_buffers()["offset"]);
    const at::Tensor kept = x.masked_fill(inputs[2].unsqueeze(1), 0);
    return {kept, inputs[1] + index, inputs[2], x.sum(1) + inputs[1].to(at::kFloat)};
  }
  at::Tensor loss(const Tensors& outputs) const { return outputs[0].square().sum() + outputs[3].mean(); }
};

std::vector<MicroBatch> mixed_window(int step) {
  std::vector<MicroBatch> batches;
  for (int micro = 0; micro < 3; ++micro) {
    at::Generator generator = at::detail::createCPUGenerator(10 * step + micro);
    batches.push_back({{at::randn({4, 5}, generator), at::arange(4), at::arange(4).remainder(3).eq(0)}, {}});
  }
  return batches;
}

}  // namespace

TEST_CASE("Several tensors pass a cut: integers, masks, and tensors that the next stage does not use") {
  Mixed plain(5);
  torch::optim::SGD optimizer(plain.parameters(), 0.1);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    double sum = 0;
    for (const MicroBatch& batch : mixed_window(step)) {
      Tensors tensors = batch.inputs;
      tensors[0] = tensors[0].clone();
      for (int index = 0; index < 4; ++index) tensors = plain.layer(index, tensors);
      const at::Tensor loss = plain.loss(tensors) / 3;
      loss.backward();
      sum += loss.item<double>();
    }
    losses.push_back(sum);
    optimizer.step();
  }
  for (const int stages : {2, 4}) {
    CAPTURE(stages);
    CHECK_NOTHROW(run_ranks(stages, [&](std::shared_ptr<Communicator> communicator) {
      auto model = std::make_shared<Mixed>(5);
      Pipeline pipeline;
      for (int index = 0; index < 4; ++index) {
        pipeline.layers.push_back(
            {"layer" + std::to_string(index),
             {model->named_parameters()["weight" + std::to_string(index)], model->named_buffers()["offset"]},
             [model, index](const Tensors& inputs) { return model->layer(index, inputs); }});
      }
      pipeline.loss = [model](const Tensors& outputs, const Tensors&) { return model->loss(outputs); };
      InitializeOptions options;
      options.pipeline = pipeline;
      options.communicator = std::move(communicator);
      options.mesh = MeshSizes{1, 1, stages};
      const Config config = parse_config(
          R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 3, "gradient_clipping": 0,
              "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": 3}})",
          "test config", {.world_size = stages, .mesh = options.mesh});
      Engine engine = initialize(*model, config, options);
      for (int step = 0; step < 3; ++step) {
        const double loss = engine.train_batch(mixed_window(step)).item<double>();
        expect(std::abs(loss - losses[step]) < 1e-6 * std::abs(losses[step]), "losses");
      }
    }));
  }
}

TEST_CASE("Layers of a pipeline that are recomputed change no bit, and those of a budget are kept") {
  const TemporaryFolder folder;
  const std::vector<std::string> ways = {
      R"(, "zerorun": {"recompute": {"every": 1}})",
      R"(, "zerorun": {"recompute": {"every": 1, "nvme_path": ")" + std::string(folder / "") + "\"}}",
      R"(, "zerorun": {"recompute": {"patterns": ["layers.2"]}})",
      R"(, "zerorun": {"recompute": {"budget": "40K"}})",
      R"(, "pipeline": {"activation_checkpoint_interval": 2})"};
  for (const auto [way, stage, stages] : settings(static_cast<int>(ways.size()), 4, 3)) {
    CAPTURE(way, stage, stages);
    const std::string& more = ways[static_cast<size_t>(way)];
    const MeshSizes mesh{1, 1, stages + 1};
    CHECK_NOTHROW(run_ranks(ranks_of(mesh), [&, &stage = stage](std::shared_ptr<Communicator> communicator) {
      const auto train = [&](const std::string& keys) {
        Decoder model(kSmall);
        Engine engine = divided_engine(model, decoder_config(stage, kSgd, 4, keys), mesh, communicator);
        return train_divided(engine, model, 3);
      };
      const TrainedDecoder kept = train(""), recomputed = train(more);
      expect(recomputed.losses == kept.losses, "losses");
      for (const auto& [name, values] : kept.parameters)
        expect_same(recomputed.parameters.at(name), values, name);
    }));
  }
}

TEST_CASE("Buffers of a pipeline's layers may change between a forward and its recomputation") {
  run_ranks(1, [](std::shared_ptr<Communicator> communicator) {
    torch::nn::Linear first(4, 4), last(4, 4);
    torch::nn::BatchNorm1d norm(4);
    struct Holder : torch::nn::Module {
    } model;
    model.register_module("first", first.ptr());
    model.register_module("norm", norm.ptr());
    model.register_module("last", last.ptr());
    Pipeline pipeline;
    pipeline.layers = {layer_of("first", *first), layer_of("norm", *norm), layer_of("last", *last)};
    pipeline.loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].square().sum(); };
    InitializeOptions options;
    options.communicator = std::move(communicator);
    options.pipeline = pipeline;
    options.mesh = MeshSizes{};
    Engine engine =
        initialize(model,
                   parse_config(decoder_config(1, kSgd, 2, R"(, "zerorun": {"recompute": {"every": 1}})"),
                                "test config", 1),
                   options);
    const std::vector<MicroBatch> batches(2, MicroBatch{.inputs = {at::ones({3, 4})}, .labels = {}});
    engine.train_batch(batches);
    expect(engine.global_steps() == 1, "a step");
  });
}

TEST_CASE("A pipeline runs layers under autocast if the config says so") {
  for (const auto [stage, recomputes] : settings(4, 2)) {
    CAPTURE(stage, recomputes);
    const std::string more = std::string(R"(, "torch_autocast": {"enabled": true})") +
                             (recomputes ? R"(, "zerorun": {"recompute": {"every": 1}})" : "");
    const auto losses_on = [&, &stage = stage](int stages, const std::string& keys) {
      std::vector<double> losses;
      run_ranks(stages, [&](std::shared_ptr<Communicator> communicator) {
        Decoder model(kSmall);
        const int rank = communicator->rank();
        Engine engine =
            divided_engine(model, decoder_config(stage, kSgd, 4, keys), {1, 1, stages}, communicator);
        const TrainedDecoder run = train_divided(engine, model, 3);
        if (rank == 0) losses = run.losses;
      });
      return losses;
    };
    const std::vector<double> cast = losses_on(1, more);
    CHECK(losses_on(2, more) == cast);
    CHECK(losses_on(1, "") != cast);
  }
}

TEST_CASE("A stage may have nothing to train") {
  // The first two stages of three are frozen.
  Decoder plain(kSmall);
  const auto freeze = [](Decoder& model) {
    for (const auto& parameter : model->named_parameters())
      parameter.value().requires_grad_(parameter.key().starts_with("last_norm") ||
                                       parameter.key().starts_with("head"));
  };
  freeze(plain);
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : plain->parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  torch::optim::SGD optimizer(trained, 0.1);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    double sum = 0;
    for (const MicroBatch& batch : window_of(kSmall, step, 4, 0)) {
      const at::Tensor loss = plain->loss(batch.inputs[0]) / 4;
      loss.backward();
      sum += loss.item<double>();
    }
    losses.push_back(sum);
    torch::nn::utils::clip_grad_norm_(trained, kClip);
    optimizer.step();
  }
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    CHECK_NOTHROW(run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
      Decoder model(kSmall);
      freeze(model);
      Engine engine =
          divided_engine(model, decoder_config(stage, kSgd, 4), {1, 1, 3}, std::move(communicator));
      for (int step = 0; step < 3; ++step) {
        const double loss = engine.train_batch(window_of(kSmall, step, 4, 0)).item<double>();
        expect(std::abs(loss - losses[step]) < 1e-6 * losses[step], "losses");
      }
    }));
  }
}

namespace {

// Computes a layer again in backward, instead of keeping what it computes in forward (re-entrant).
struct Recomputed : torch::autograd::Function<Recomputed> {
  using Layer = std::function<Tensors(const Tensors&)>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Layer* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    return (*layer)({x})[0];
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::AutoGradMode enabled(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const auto* layer = reinterpret_cast<const Layer*>(context->saved_data["layer"].toInt());
    torch::autograd::backward({(*layer)({x})[0]}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

TEST_CASE("Layers that are recomputed in backward train with the same bits") {
  for (const int stage : {0, 2, 3}) {
    CAPTURE(stage);
    std::vector<TrainedDecoder> trained[2];
    for (const bool recomputes : {false, true}) {
      trained[recomputes].resize(4);
      CHECK_NOTHROW(run_ranks(4, [&, recomputes](std::shared_ptr<Communicator> communicator) {
        const int rank = communicator->rank();
        Decoder model(kSmall);
        Pipeline pipeline = pipeline_of(model);
        std::vector<Recomputed::Layer> layers;
        for (const PipelineLayer& layer : pipeline.layers) layers.push_back(layer.forward);
        for (size_t index = 1; recomputes && index < 5; ++index) {
          pipeline.layers[index].forward = [layer = &layers[index]](const Tensors& inputs) {
            return Tensors{Recomputed::apply(inputs[0], layer)};
          };
        }
        Engine engine = divided_engine(model, decoder_config(stage, kSgd, 3), {2, 1, 2},
                                       std::move(communicator), pipeline);
        trained[recomputes][rank] = train_divided(engine, model, 3);
      }));
    }
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(trained[1][rank].losses == trained[0][rank].losses);
      for (const auto& [name, values] : trained[0][rank].parameters)
        CHECK(at::equal(trained[1][rank].parameters.at(name), values));
    }
  }
}

TEST_CASE("Layers may use activations without grad as they like, and a micro-batch may have no gradients") {
  // The first stage is frozen. The second one asks for gradients of what it is given, writes to it in place,
  // and on one data rank drops all gradients of every other micro-batch.
  constexpr int kCount = 70;
  const int stage = GENERATE(0, 2, 3);
  CAPTURE(stage);
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Decoder model(kSmall);
    for (const auto& parameter : model->named_parameters()) {
      const std::string& name = parameter.key();
      parameter.value().requires_grad_(!name.starts_with("embedding") && !name.starts_with("layers.0") &&
                                       !name.starts_with("layers.1"));
    }
    Pipeline pipeline = pipeline_of(model);
    int calls = 0;
    pipeline.layers[3].forward = [&, forward = pipeline.layers[3].forward](const Tensors& inputs) {
      expect(!inputs[0].requires_grad(), "nothing before requires grad");
      inputs[0].mul_(model->named_parameters()["layers.2.norm.weight"].detach()).requires_grad_(true);
      const bool drops = stage < 3 && rank % 2 == 1 && calls++ % 2 == 1;  // at stage 3 all use the same
      const Tensors outputs = forward(inputs);
      return drops ? Tensors{outputs[0].detach().requires_grad_(false)} : outputs;
    };
    Engine engine = divided_engine(model, decoder_config(stage, kSgd, kCount), {2, 1, 2},
                                   std::move(communicator), pipeline);
    const double first =
        engine.train_batch(window_of(kSmall, 0, kCount, engine.mesh().coordinates().data)).item<double>();
    const double second =
        engine.train_batch(window_of(kSmall, 0, kCount, engine.mesh().coordinates().data)).item<double>();
    expect(second < first, "the loss falls");
  }));
}

TEST_CASE("Measured layers are cut into stages of equal time") {
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    const at::Tensor weight = at::ones({3}, at::requires_grad());
    const int milliseconds[] = {30, 1, 1, 1, 30};
    Pipeline pipeline;
    for (const int time : milliseconds) {
      pipeline.layers.push_back(
          {"layer" + std::to_string(pipeline.layers.size()), {weight}, [=](const Tensors& inputs) {
             std::this_thread::sleep_for(std::chrono::milliseconds(time));
             return Tensors{inputs[0] * weight, inputs[1]};
           }});
    }
    pipeline.loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); };
    const MicroBatch batch{{at::ones({2, 3}), at::arange(2)}, {}};
    const auto seconds = measure_layers(pipeline.layers, batch, *communicator, 3);
    for (const int layer : {0, 4}) expect(seconds[layer] > 0.03, "a slow layer");
    expect(!weight.grad().defined(), "no gradients are left");
    pipeline.cut = {.by = PipelineCut::By::seconds, .seconds = {1, 1, 1, 1, 4}};
    expect(divide_layers(pipeline, 2) == std::vector<int>{0, 4, 5}, "the slow one is alone");
    pipeline.layers[2].forward = [](const Tensors&) -> Tensors { throw std::runtime_error("a fault"); };
    expect_throws([&] { measure_layers(pipeline.layers, batch, *communicator); }, "a fault", "on all ranks");
  }));
}

}  // namespace zerorun::testing
