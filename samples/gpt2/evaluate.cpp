#include "samples/gpt2/evaluate.h"

#include <zerorun/program.h>

#include <algorithm>
#include <cmath>

namespace samples {

using zerorun::UserError;

Evaluation evaluate(Gpt2& model, zerorun::Engine& engine, const TokenFile& text, int64_t seq, int64_t rows) {
  if (text.size() < 2) throw UserError("--eval: the text has one token: expected more, to predict them");
  at::NoGradGuard no_grad;
  engine.eval();
  zerorun::Communicator& communicator = engine.mesh().data();
  // Each window begins with the last token of the previous window, so every token but the first is predicted
  // once.
  const int64_t stride = seq - 1;
  const int64_t windows = (text.size() - 2) / stride + 1;
  const int64_t rounds = (windows - 1) / (rows * communicator.world_size()) + 1;
  double sum = 0;
  std::vector<zerorun::MicroBatch> windows_of_rank;  // of a pipeline, which takes them all at once
  // All ranks run the same number of rounds, because forward may gather parameters.
  for (int64_t round = 0; round < rounds; ++round) {
    at::Tensor tokens = at::zeros({rows, seq}, at::kLong);
    at::Tensor labels = at::full({rows, seq}, -100, at::kLong);  // ignored by cross_entropy
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t window = (round * communicator.world_size() + communicator.rank()) * rows + row;
      if (window >= windows) break;
      const int64_t count = std::min(seq, text.size() - window * stride);
      text.copy(window * stride, count, tokens[row].mutable_data_ptr<int64_t>());
      labels[row].narrow(0, 0, count - 1).copy_(tokens[row].narrow(0, 1, count - 1));
    }
    tokens = tokens.to(engine.device());
    labels = labels.to(engine.device());
    if (engine.mesh().sizes().pipeline > 1) {
      windows_of_rank.push_back({{tokens}, {labels, at::ones({})}});  // the sum of the losses
      continue;
    }
    const at::Tensor logits = model->forward(tokens);
    sum += at::cross_entropy_loss(logits.view({-1, logits.size(2)}), labels.view(-1), {}, at::Reduction::Sum)
               .item<double>();
  }
  if (!windows_of_rank.empty()) {
    // The mean over windows and data ranks, on all ranks.
    sum = engine.eval_batch(windows_of_rank).item<double>() * static_cast<double>(rounds);
  }
  engine.train();
  at::Tensor total = at::full({1}, sum, at::kDouble);
  communicator.all_reduce(total, "loss of held-out text")->wait();
  Evaluation result;
  result.loss = total.item<double>() / static_cast<double>(text.size() - 1);
  result.perplexity = std::exp(result.loss);
  result.bits_per_byte = total.item<double>() / std::log(2.0) / static_cast<double>(text.text_bytes());
  return result;
}

}  // namespace samples
