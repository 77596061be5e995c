#include "tests/engine/recomputed_model.h"

#include "activations/recomputable.h"
#include "tests/engine/net.h"

namespace zerorun::testing {

FeedForward::FeedForward(int64_t hidden, double dropout)
    : up(register_module("up", torch::nn::Linear(hidden, 4 * hidden))),
      down(register_module("down", torch::nn::Linear(4 * hidden, hidden))),
      half(register_module("half", std::make_shared<torch::nn::Module>())),
      dropout(dropout) {}

at::Tensor FeedForward::forward(const at::Tensor& x) {
  ++forwards;
  const at::Tensor wide = at::dropout(at::gelu(up(x)), dropout, is_training());
  return x + recomputable(
                 *half,
                 [this](const at::Tensor& given) {
                   ++of_half;
                   return down(given);
                 },
                 wide);
}

BlockModel::BlockModel(int64_t count, int64_t hidden, double dropout)
    : embedding(register_module("embedding", torch::nn::Embedding(kVocab, hidden))) {
  for (int64_t index = 0; index < count; ++index) {
    blocks.push_back(
        register_module("block" + std::to_string(index), std::make_shared<FeedForward>(hidden, dropout)));
  }
  fill(*this, 11);
}

at::Tensor BlockModel::run_blocks(at::Tensor x) {
  for (const auto& block : blocks) x = recomputable(*block, x);
  return x;
}

at::Tensor BlockModel::loss_of(const at::Tensor& x, const at::Tensor& tokens) {
  const at::Tensor logits = at::linear(x, embedding->weight).to(at::kFloat);
  return at::cross_entropy_loss(logits.slice(1, 0, -1).reshape({-1, kVocab}),
                                tokens.slice(1, 1).reshape({-1}));
}

at::Tensor BlockModel::loss(const at::Tensor& tokens) {
  return loss_of(run_blocks(embedding(tokens)), tokens);
}

}  // namespace zerorun::testing
