// GPT-2 with Hugging Face's parameter names, layout and initialisation: Conv1D weights are [in, out], lm_head
// is tied to transformer.wte.weight, gelu_new, learned positions, no dropout. Owned by the caller; one thread
// at a time.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>

namespace zerorun {

struct Gpt2Options {
  int64_t layers = 4;
  int64_t hidden = 192;
  int64_t heads = 4;  // divides hidden
  int64_t vocab = 256;
  int64_t positions = 128;  // the longest sequence
  uint64_t seed = 1234;     // of the initial weights
};

class Gpt2Impl : public torch::nn::Module {
 public:
  explicit Gpt2Impl(const Gpt2Options& options);

  /// tokens: (B, T) int64 with T <= positions. Returns logits (B, T, vocab) in fp32.
  at::Tensor forward(const at::Tensor& tokens);
  /// Mean cross entropy of predicting each token from those before it: the labels are `tokens`, shifted by
  /// one here.
  at::Tensor loss(const at::Tensor& tokens);

  const Gpt2Options& options() const { return options_; }

 private:
  struct Transformer;
  Gpt2Options options_;
  std::shared_ptr<Transformer> transformer_;
};
TORCH_MODULE(Gpt2);

}  // namespace zerorun
