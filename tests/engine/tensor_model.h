// A decoder for the tests of tensor parallelism and pipelines, written as its users write one: sizes of
// results are taken from the results (-1), and nothing in it knows of ranks.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tensor_parallel/plan.h"

namespace zerorun::testing {

struct DecoderOptions {
  bool gated = false;       // RMS norms, a gated MLP and no biases, as Llama; else as GPT-2
  bool fused = false;       // one projection for query, key and value
  bool head_norms = false;  // norms of the heads of query and key, as Qwen3
  bool tied = false;        // the head is the embedding
  bool lora = false;        // only adapters of query and of the output projection are trained
  int64_t heads = 8;
  int64_t key_heads = 8;
  int64_t head_size = 4;
  int64_t layers = 2;
  int64_t vocab = 44;

  int64_t hidden() const { return 32; }
};

struct DecoderImpl : torch::nn::Module {
  explicit DecoderImpl(const DecoderOptions& options);
  /// The mean cross entropy of predicting each token from those before it. tokens: (B, T) int64.
  at::Tensor loss(const at::Tensor& tokens);
  /// One layer. x: (B, T, hidden).
  at::Tensor layer(int64_t number, const at::Tensor& x);

  // The parts of loss().
  at::Tensor embed(const at::Tensor& tokens);
  at::Tensor logits(const at::Tensor& x);
  at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& tokens) const;

  DecoderOptions options;

 private:
  at::Tensor linear(const std::string& name, const at::Tensor& x);
  at::Tensor norm(const std::string& name, const at::Tensor& x);
  at::Tensor attention(const std::string& prefix, const at::Tensor& x);
  at::Tensor mlp(const std::string& prefix, const at::Tensor& x);
};
TORCH_MODULE(Decoder);

TensorPlan plan_of(const DecoderOptions& options);

}  // namespace zerorun::testing
