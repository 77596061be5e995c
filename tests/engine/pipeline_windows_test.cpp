// Tests of the windows of a pipeline: their order, what a stage holds meanwhile, windows and micro-batches of
// other sizes, what passes between stages, and evaluation.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "pipeline/layer_times.h"
#include "pipeline/schedule.h"
#include "pipeline/tensor_messages.h"
#include "tests/engine/pipeline_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"

namespace zerorun::testing {

TEST_CASE("The schedule runs each micro-batch once in each direction, with p - s in flight") {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int count = 1; count <= 9; ++count) {
      for (int stage = 0; stage < stages; ++stage) {
        CAPTURE(stages, count, stage);
        int forwards = 0, backwards = 0, most = 0;
        for (const auto& [is_forward, index] : one_forward_one_backward(stage, stages, count)) {
          CHECK(index == (is_forward ? forwards : backwards));
          ++(is_forward ? forwards : backwards);
          CHECK(backwards <= forwards);
          most = std::max(most, forwards - backwards);
        }
        CHECK(forwards == count);
        CHECK(backwards == count);
        CHECK(most == std::min(stages - stage, count));
      }
    }
  }
}

TEST_CASE("Cuts: equal numbers, the smallest largest sum, and every stage has a layer") {
  CHECK(cut_by_number(10, 4) == std::vector<int>{0, 3, 6, 8, 10});
  CHECK(cut_by_number(3, 3) == std::vector<int>{0, 1, 2, 3});
  CHECK(cut_by_cost(std::vector<double>{8, 1, 1, 1, 1, 8}, 3) == std::vector<int>{0, 1, 5, 6});
  CHECK(cut_by_cost(std::vector<double>{0, 0, 0, 0}, 4) == std::vector<int>{0, 1, 2, 3, 4});
  CHECK(cut_by_cost(std::vector<double>{1, 2, 3, 4, 5}, 2) == std::vector<int>{0, 3, 5});
}

TEST_CASE("A stage holds the activations of p - s micro-batches at most") {
  constexpr int kStages = 4;
  struct Counts {
    std::atomic<int> held = 0, most = 0;
  };
  // An operator whose graph counts itself as long as it lives.
  struct Counted : torch::autograd::Function<Counted> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                              const std::shared_ptr<Counts>& counts) {
      counts->most = std::max(counts->most.load(), ++counts->held);
      context->saved_data["guard"] = c10::IValue::make_capsule(c10::make_intrusive<Guard>(counts));
      return x * 1;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list gradients) {
      return {gradients[0], at::Tensor()};
    }
    struct Guard : torch::CustomClassHolder {
      explicit Guard(std::shared_ptr<Counts> given) : counts(std::move(given)) {}
      ~Guard() override { --counts->held; }
      std::shared_ptr<Counts> counts;
    };
  };
  for (const int count : {2, 8}) {
    CAPTURE(count);
    CHECK_NOTHROW(run_ranks(kStages, [&](std::shared_ptr<Communicator> communicator) {
      const int rank = communicator->rank();
      Decoder model(kSmall);
      const auto counts = std::make_shared<Counts>();
      Pipeline pipeline = pipeline_of(model);
      for (PipelineLayer& layer : pipeline.layers) {
        layer.forward = [forward = layer.forward, counts](const Tensors& inputs) {
          return Tensors{Counted::apply(forward(inputs)[0], counts)};
        };
      }
      pipeline.cut =
          PipelineCut{.by = PipelineCut::By::names, .firsts = {"layers.1", "layers.2", "layers.3"}};
      const int own = rank == 0 || rank == kStages - 1 ? 2 : 1;  // layers
      Engine engine = divided_engine(model, decoder_config(1, kSgd, count), {1, 1, kStages},
                                     std::move(communicator), pipeline);
      engine.train_batch(window_of(kSmall, 0, count, 0));
      const int expected = own * std::min(kStages - rank, count);
      expect(counts->most == expected,
             "held " + std::to_string(counts->most) + ", expected " + std::to_string(expected));
      expect(counts->held == 0, "nothing is held after the window");
    }));
  }
}

TEST_CASE("Windows of other lengths, and micro-batches of other shapes, train like a plain process") {
  const std::vector<int> lengths = {4, 4, 1, 3, 6, 4};
  const auto window = [&](int step) {
    std::vector<MicroBatch> batches;
    for (int micro = 0; micro < lengths[step]; ++micro) {
      const int64_t rows = 1 + (step * 7 + micro) % 3, length = 3 + (step + micro) % 2;
      const at::Tensor tokens = (at::arange(rows * length) * 7 + micro + step).remainder(40).view({rows, -1});
      batches.push_back({{tokens}, {tokens}});
    }
    return batches;
  };
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    Decoder plain(kSmall);
    torch::optim::SGD optimizer(plain->parameters(), 0.1);
    std::vector<double> losses;
    for (int step = 0; step < static_cast<int>(lengths.size()); ++step) {
      optimizer.zero_grad();
      double sum = 0;
      for (const MicroBatch& batch : window(step)) {
        const at::Tensor loss = plain->loss(batch.inputs[0]) / lengths[step];
        loss.backward();
        sum += loss.item<double>();
      }
      losses.push_back(sum);
      torch::nn::utils::clip_grad_norm_(plain->parameters(), kClip);
      optimizer.step();
    }
    CHECK_NOTHROW(run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
      Decoder model(kSmall);
      Engine engine =
          divided_engine(model, decoder_config(stage, kSgd, 4), {1, 1, 3}, std::move(communicator));
      for (int step = 0; step < static_cast<int>(lengths.size()); ++step) {
        const double loss = engine.train_batch(window(step)).item<double>();
        expect(std::abs(loss - losses[step]) < 1e-6 * losses[step],
               "step " + std::to_string(step) + ": loss " + std::to_string(loss) + ", expected " +
                   std::to_string(losses[step]));
      }
      expect(engine.global_steps() == 6, "each window is one step");
    }));
  }
}

TEST_CASE("Windows F F B | F B | B of a program's own at stage 3 compute as in a plain process") {
  // Micro-steps that alternate otherwise than forward and backward, with step() between them.
  const DecoderOptions options = {.layers = 2};
  const auto run = [&](Decoder& model, const auto& backward, const auto& step) {
    std::vector<double> losses;
    for (int number = 0; number < 3; ++number) {
      auto loss = [&](int micro) { return model->loss(tokens_of(options, number, micro, 0)); };
      const at::Tensor first = loss(0), second = loss(1);
      backward(first), step();
      const at::Tensor third = loss(2);
      backward(second), step();
      backward(third), step();
      losses.push_back((first + second + third).item<double>());
    }
    return losses;
  };
  Decoder plain(options);
  torch::optim::SGD optimizer(plain->parameters(), 0.1);
  int micro_steps = 0;
  const auto expected = run(
      plain, [](const at::Tensor& loss) { (loss / 3).backward(); },
      [&] {
        if (++micro_steps % 3 != 0) return;
        torch::nn::utils::clip_grad_norm_(plain->parameters(), kClip);
        optimizer.step();
        optimizer.zero_grad();
      });
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(options);
    Engine engine =
        decoder_engine(*model, decoder_config(3, kSgd, 3), {.data = 2}, std::move(communicator), {});
    const auto found = run(
        model, [&](const at::Tensor& loss) { engine.backward(loss); }, [&] { engine.step(); });
    for (size_t index = 0; index < expected.size(); ++index)
      expect(std::abs(found[index] - expected[index]) < 1e-6 * expected[index], "losses");
  }));
}

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

TEST_CASE("Evaluation has the plain model's loss, leaves the mode, and trains nothing") {
  Decoder plain(kSmall);
  double expected = 0;
  for (const MicroBatch& batch : window_of(kSmall, 3, 70, 0))
    expected += plain->loss(batch.inputs[0]).item<double>() / 70;
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(kSmall);
    Engine engine = divided_engine(model, decoder_config(3, kSgd, 2), {1, 1, 4}, std::move(communicator));
    const double before = engine.eval_batch(window_of(kSmall, 3, 70, 0)).item<double>();
    expect(std::abs(before - expected) < 1e-6 * expected,
           "the loss of more micro-batches than may be on the way");
    expect(model->is_training(), "the mode is what it was");
    const double trained = engine.train_batch(window_of(kSmall, 3, 2, 0)).item<double>();
    engine.eval();
    const double after = engine.eval_batch(window_of(kSmall, 3, 2, 0)).item<double>();
    expect(after < trained, "the step has lowered the loss");
    expect(!model->is_training(), "evaluation stays evaluation");
  }));
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

TEST_CASE("A window of more uses of parameters than a record has is one iteration that is planned") {
  if (!tries_all()) return;  // a minute; tests of GatherTrace have a short one
  const DecoderOptions options = {.layers = 24};
  constexpr int kCount = 160;
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(options);
    Engine engine = divided_engine(
        model,
        decoder_config(3, kSgd, kCount, "",
                       R"(, "stage3_max_live_parameters": 3000, "stage3_prefetch_bucket_size": 1000)"),
        {2, 1, 2}, std::move(communicator));
    const auto window = [&](int step) {
      return window_of(options, step, kCount, engine.mesh().coordinates().data);
    };
    engine.train_batch(window(0));
    const int64_t departures = engine.residency().departures;
    engine.train_batch(window(1));
    expect(engine.residency().departures == departures, "the second window follows the first one's trace");
  }));
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

TEST_CASE("Bytes that cross a cut are those of activations and gradients") {
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(kSmall);
    Engine engine = divided_engine(model, decoder_config(2, kSgd, 5), {1, 1, 2}, std::move(communicator));
    engine.train_batch(window_of(kSmall, 0, 5, 0));
    Volume& volume = engine.mesh().along(MeshAxis::pipeline).volume();
    volume.reset();
    engine.train_batch(window_of(kSmall, 1, 5, 0));
    // Each micro-batch crosses once in each direction: (2, 7, hidden) elements. Forwards also send whether
    // the shapes have changed.
    const double activations = 5.0 * 2 * 7 * static_cast<double>(kSmall.hidden());
    const double expected = engine.mesh().coordinates().pipeline == 0 ? activations + 5 : activations;
    expect(volume.elements_of_messages() == expected,
           std::to_string(volume.elements_of_messages()) + " elements, expected " + std::to_string(expected));
  }));
}

}  // namespace zerorun::testing
