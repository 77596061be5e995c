// Compares the model's losses and gradients with those of Hugging Face's GPT2LMHeadModel under DeepSpeed, for
// the same weights and text.
#include <catch2/catch.hpp>
#include <cmath>

#include "checkpoint/safetensors_reader.h"
#include "samples/gpt2/model.h"
#include "samples/gpt2/sampler.h"
#include "samples/gpt2/weights.h"
#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {
using namespace samples;
namespace {

constexpr int64_t kSeq = 32;

Gpt2 golden_model() {
  Gpt2 model(Gpt2Options{.layers = 2, .hidden = 64, .heads = 4, .vocab = 256, .positions = kSeq, .seed = 1});
  load_weights(*model, ZERORUN_SOURCE_DIR "/tests/golden/data/init_tiny_seed1234.safetensors");
  return model;
}

// Returns the tokens of one micro-step in the sequential order, with a micro-batch of 2.
at::Tensor golden_tokens(int64_t accumulation, int64_t world_size, int64_t micro_step, int64_t rank) {
  const std::vector<uint8_t>& text = golden_text();
  const Sampler sampler({.corpus_size = static_cast<int64_t>(text.size()),
                         .seq = kSeq,
                         .micro_batch = 2,
                         .accumulation = accumulation,
                         .world_size = world_size,
                         .sequential = true});
  std::vector<int64_t> tokens;
  for (const int64_t offset : sampler.offsets(0, micro_step, rank)) {
    tokens.insert(tokens.end(), text.begin() + offset, text.begin() + offset + kSeq);
  }
  return at::tensor(tokens, at::kLong).view({2, kSeq});
}

TEST_CASE("the first losses are the golden ones") {
  at::set_num_threads(1);
  at::NoGradGuard no_grad;
  Gpt2 model = golden_model();
  auto loss = [&](int64_t accumulation, int64_t world_size, int64_t micro_step, int64_t rank) {
    return model->loss(golden_tokens(accumulation, world_size, micro_step, rank)).item<double>();
  };
  const double accumulated[2][4] = {
      {5.028088569641113, 5.503633499145508, 5.141377925872803, 5.536129474639893},
      {5.434231281280518, 5.522902488708496, 5.527297496795654, 5.538763046264648}};
  for (int64_t rank = 0; rank < 2; ++rank) {
    for (int64_t micro_step = 0; micro_step < 4; ++micro_step) {
      CHECK(loss(4, 2, micro_step, rank) == Approx(accumulated[rank][micro_step]).epsilon(1e-6));
    }
  }
  CHECK(loss(1, 3, 0, 2) == Approx(5.503633499145508).epsilon(1e-6));
}

TEST_CASE("the first gradients, averaged over two ranks, are the golden ones") {
  at::set_num_threads(1);
  Gpt2 model = golden_model();
  for (int64_t rank = 0; rank < 2; ++rank) (model->loss(golden_tokens(1, 2, 0, rank)) / 2).backward();

  SafetensorsReader golden(ZERORUN_SOURCE_DIR "/tests/golden/data/grad_step0_w2_fp32.safetensors");
  const auto parameters = model->named_parameters();
  REQUIRE(parameters.size() == golden.tensors().size());
  double squares = 0.0;
  for (const auto& parameter : parameters) {
    INFO(parameter.key());
    REQUIRE(golden.tensors().contains(parameter.key()));
    std::vector<std::byte> bytes = golden.read(parameter.key());
    const at::Tensor expected =
        at::from_blob(bytes.data(), golden.tensors().at(parameter.key()).shape, at::kFloat).to(at::kDouble);
    const at::Tensor found = parameter.value().grad().to(at::kDouble);
    REQUIRE(found.sizes() == expected.sizes());
    const double norm = expected.norm().item<double>();
    CHECK(norm > 0.0);
    CHECK((found - expected).norm().item<double>() <= 2e-6 * norm);
    squares += found.square().sum().item<double>();
  }
  CHECK(std::sqrt(squares) == Approx(5.502296447753906).epsilon(1e-6));
}

}  // namespace
}  // namespace zerorun::testing
