// Tests that training on parts has the same bits at all stages, wherever states live, however the model is
// built and backward is called, and that bytes and traffic are those of the formula.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "engine/gathered_parameters.h"
#include "tests/engine/tensor_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"
#include "zero/deferred_init.h"

namespace zerorun::testing {
namespace {

const std::string kAdamW = R"({"type": "AdamW", "params": {"lr": 0.003}})";
constexpr int kSteps = 4;

struct Way {
  std::string name;
  std::string config;
  bool deferred = false;
  bool plain_backward = false;
};

// Trains in this way, and returns what rank 0 has.
TrainedDecoder train_in(const Way& way, const DecoderOptions& options, const MeshSizes& mesh = kTwoByTwo) {
  TrainedDecoder of_rank_0;
  run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
    const bool is_first = communicator->rank() == 0;
    std::optional<DeferredInit> init;
    if (way.deferred) init.emplace();
    Decoder model(options);
    init.reset();
    Engine engine = decoder_engine(*model, way.config, mesh, std::move(communicator), plan_of(options));
    TrainedDecoder trained = train_decoder(engine, model, kSteps, 0, way.plain_backward);
    if (is_first) of_rank_0 = std::move(trained);
  });
  return of_rank_0;
}

void check_same(const TrainedDecoder& found, const TrainedDecoder& expected) {
  CHECK(found.losses == expected.losses);
  CHECK(found.norms == expected.norms);
  for (const auto& [name, values] : expected.parameters) {
    INFO(name);
    CHECK(at::equal(found.parameters.at(name), values));
  }
}

}  // namespace

TEST_CASE("Parts train with the same bits at all stages, in all homes, and however backward is called") {
  const TemporaryFolder folder;
  const std::string nvme = R"({"device": "nvme", "nvme_path": ")" + (folder / "").string() + '"';
  const std::string in_files = R"(, "offload_optimizer": )" + nvme + "}";
  const std::string all_in_files = in_files + R"(, "offload_param": )" + nvme + R"(, "max_in_cpu": 0})";
  const std::string on_host = R"(, "offload_optimizer": {"device": "cpu"})";
  const DecoderOptions options{.gated = true, .head_norms = true, .tied = true};
  for (const char* precision :
       {"", R"(, "bf16": {"enabled": true})", R"(, "fp16": {"enabled": true, "initial_scale_power": 10})",
        R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true},
           "zerorun": {"stochastic_rounding": true})"}) {
    const auto config = [&](int stage, const std::string& zero = "") {
      return decoder_config(stage, kAdamW, 1, precision, zero);
    };
    const TrainedDecoder expected = train_in({"stage 0", config(0)}, options);
    REQUIRE(expected.losses.size() == kSteps);
    REQUIRE(expected.losses.back() < expected.losses.front());
    for (const Way& way : std::vector<Way>{{"stage 1", config(1)},
                                           {"stage 2", config(2)},
                                           {"stage 3", config(3)},
                                           {"overlap", config(2, R"(, "overlap_comm": true)")},
                                           {"on the host", config(2, on_host)},
                                           {"in files", config(1, in_files)},
                                           {"all in files", config(3, all_in_files)},
                                           {"deferred", config(3), true},
                                           {"loss.backward()", config(2), false, true}}) {
      INFO(precision << " " << way.name);
      check_same(train_in(way, options), expected);
    }
  }
}

TEST_CASE("The program's own optimizer trains parts") {
  const DecoderOptions options;
  TrainedDecoder expected =
      train_in({"config", decoder_config(2, R"({"type": "SGD", "params": {"lr": 0.1}})")}, options);
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    InitializeOptions given;
    given.optimizer = &optimizer;
    std::string config = decoder_config(2, "0");
    config.replace(config.find(R"("optimizer": 0, )"), 16, "");
    Engine engine =
        decoder_engine(*model, config, kTwoByTwo, std::move(communicator), plan_of(options), given);
    const TrainedDecoder found = train_decoder(engine, model, kSteps);
    for (const auto& [name, values] : expected.parameters)
      expect(at::allclose(found.parameters.at(name), values, 1e-6, 1e-7), name);
  }));
}

TEST_CASE("The sums of a step, and the bytes of a rank, are those of the formula") {
  const DecoderOptions options;  // two layers with attention and an MLP, and an output layer
  const int64_t rows = 2 * 7, hidden = options.hidden();
  // In forward the embedding and two rowwise products a layer are summed; in backward the inputs of two
  // groups of colwise products a layer, and of the output layer.
  const int64_t sums = (1 + 2 * options.layers) + (2 * options.layers + 1);
  for (const int tensor : {2, 4}) {
    const MeshSizes mesh{.data = 2, .tensor = tensor, .pipeline = 1};
    CHECK_NOTHROW(run_ranks(2 * tensor, [&](std::shared_ptr<Communicator> communicator) {
      Decoder model(options);
      int64_t split = 0, whole = 0;
      const TensorPlan plan = plan_of(options);
      for (const auto& parameter : model->named_parameters()) {
        const TensorPlanEntry* entry = find_entry(plan, parameter.key());
        const bool is_bias = parameter.key().ends_with("bias");
        const bool is_split = entry && !(is_bias && entry->style == TensorStyle::rowwise);
        (is_split ? split : whole) += parameter.value().numel();
      }
      Engine engine = decoder_engine(*model, decoder_config(0, kAdamW), mesh, std::move(communicator), plan);
      train_decoder(engine, model, 1);  // the first step compares losses and gradients too
      Volume& volume = engine.mesh().along(MeshAxis::tensor).volume();
      volume.reset();
      const at::Tensor loss = model->loss(tokens_of(options, 1, 0, 0));
      engine.backward(loss);
      engine.step();
      const double sum = static_cast<double>(rows * hidden) * (tensor - 1);
      expect(volume.elements(Collective::all_reduce) == static_cast<double>(sums) * sum,
             "elements of sums " + std::to_string(volume.elements(Collective::all_reduce) / sum) + " of " +
                 std::to_string(sums));
      const double logits = static_cast<double>(rows * options.vocab) * (tensor - 1) / tensor;
      expect(volume.elements(Collective::all_gather) == logits, "elements of gathered logits");
      const auto expected = static_cast<double>(whole + split / tensor);
      const BytesByCategory bytes = engine.bytes_by_category();
      // Gaps for alignment: less than 16 elements for each of at most 40 parameters, padding included.
      for (const auto& [found, times] : {std::pair{bytes.parameters, 4}, {bytes.moments, 8}}) {
        expect(static_cast<double>(found) >= times * expected, "bytes of all elements");
        expect(static_cast<double>(found) < times * (expected + 40 * 16), "and not many more");
      }
    }));
  }
}

}  // namespace zerorun::testing
