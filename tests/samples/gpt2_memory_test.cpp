// Tests that the sample's GPT-2 keeps the activations that a closed formula says, with and without
// recomputation.
#include <catch2/catch.hpp>
#include <string>

#include "comm/thread_communicator.h"
#include "engine/engine.h"
#include "samples/gpt2/model.h"
#include "tests/support/allocated_bytes.h"

namespace {

constexpr int64_t kRows = 4, kLength = 64, kHidden = 64, kHeads = 4, kLayers = 8, kVocab = 64;
constexpr int64_t kTokens = kRows * kLength;

// Elements that a block keeps for backward, its input first: the inputs of its four linear layers (1 + 1 + 1
// + 4) and of gelu (4) in units of tokens x hidden; query, key and value (3), the sum after attention (1) and
// the input itself (1); means and deviations of two norms; attention's sums, one for each head and token.
constexpr int64_t kInput = kTokens * kHidden;
constexpr int64_t kBlock = 16 * kInput + 4 * kTokens + kHeads * kTokens;
// The last norm's input, output, means and deviations, and the probabilities of the loss.
constexpr int64_t kRest = 2 * kInput + 2 * kTokens + kTokens * kVocab;

// Bytes that the model holds between forward and backward. `recomputed`: how many of its blocks.
double bytes_by_formula(int64_t recomputed) {
  return 4.0 * static_cast<double>((kLayers - recomputed) * kBlock + recomputed * kInput + kRest);
}

double measured_bytes(const std::string& recompute) {
  samples::Gpt2 model(samples::Gpt2Options{
      .layers = kLayers, .hidden = kHidden, .heads = kHeads, .vocab = kVocab, .positions = kLength});
  zerorun::InitializeOptions options;
  options.communicator = zerorun::make_thread_communicators(1, std::chrono::seconds(60))[0];
  const std::string text = R"({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3},
      "optimizer": {"type": "SGD", "params": {"lr": 0.1}})" +
                           (recompute.empty() ? "" : R"(, "zerorun": {"recompute": {)" + recompute + "}}") +
                           "}";
  zerorun::Engine engine =
      zerorun::initialize(*model, zerorun::parse_config(text, "test config", 1), options);
  const at::Tensor tokens = at::arange(kTokens).remainder(kVocab).view({kRows, kLength});
  double bytes = 0;
  for (int step = 0; step < 3; ++step) {
    const zerorun::testing::AllocatedBytes allocated;
    const at::Tensor loss = model->loss(tokens);
    bytes = static_cast<double>(allocated.now());
    engine.backward(loss);
    engine.step();
  }
  return bytes;
}

}  // namespace

TEST_CASE(
    "GPT-2 keeps the activations of the formula, with every, every second, every fourth block recomputed") {
  struct Way {
    const char* recompute;
    int64_t blocks;
  };
  for (const auto& [recompute, blocks] :
       {Way{"", 0}, Way{R"("every": 1)", 8}, Way{R"("every": 2)", 4}, Way{R"("every": 4)", 2}}) {
    CAPTURE(recompute);
    CHECK(measured_bytes(recompute) == Approx(bytes_by_formula(blocks)).epsilon(0.05));
  }
}
