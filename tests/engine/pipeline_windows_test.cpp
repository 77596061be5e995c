// Tests of the windows of a pipeline: their order, what a stage holds and sends meanwhile, windows and
// micro-batches of other sizes, and evaluation.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "pipeline/schedule.h"
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
    std::vector<double> losses, norms;
    for (int step = 0; step < static_cast<int>(lengths.size()); ++step) {
      optimizer.zero_grad();
      double sum = 0;
      for (const MicroBatch& batch : window(step)) {
        const at::Tensor loss = plain->loss(batch.inputs[0]) / lengths[step];
        loss.backward();
        sum += loss.item<double>();
      }
      losses.push_back(sum);
      norms.push_back(torch::nn::utils::clip_grad_norm_(plain->parameters(), kClip));
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
        // Clipping hides a wrong factor from all else.
        const double norm = engine.get_global_grad_norm();
        expect(std::abs(norm - norms[step]) < 1e-5 * norms[step], "step " + std::to_string(step) + ": norm " +
                                                                      std::to_string(norm) + ", expected " +
                                                                      std::to_string(norms[step]));
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

TEST_CASE("A window of more uses of parameters than a record has is one iteration that is planned") {
  // A record had 2^15 uses at most, which takes a minute; tests of GatherTrace have as many.
  const DecoderOptions options = {.layers = tries_all() ? 24 : 4};
  const int count = tries_all() ? 160 : 6;
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(options);
    Engine engine = divided_engine(
        model,
        decoder_config(3, kSgd, count, "",
                       R"(, "stage3_max_live_parameters": 3000, "stage3_prefetch_bucket_size": 1000)"),
        {2, 1, 2}, std::move(communicator));
    const auto window = [&](int step) {
      return window_of(options, step, count, engine.mesh().coordinates().data);
    };
    engine.train_batch(window(0));
    const int64_t departures = engine.residency().departures;
    engine.train_batch(window(1));
    expect(engine.residency().departures == departures, "the second window follows the first one's trace");
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
