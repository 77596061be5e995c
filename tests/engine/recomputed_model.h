// A small model of marked blocks for the tests of recomputation.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

namespace zerorun::testing {

/// x + down(dropout(gelu(up(x)))), which counts its forwards. With an inner mark around its second half.
struct FeedForward : torch::nn::Module {
  FeedForward(int64_t hidden, double dropout);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear up, down;
  std::shared_ptr<torch::nn::Module> half;
  double dropout;
  int forwards = 0;
  int of_half = 0;
};

/// An embedding, which is the head too, and marked blocks.
struct BlockModel : torch::nn::Module {
  explicit BlockModel(int64_t blocks, int64_t hidden = 16, double dropout = 0);
  /// tokens: (B, T) int64 below kVocab. Mean cross entropy of predicting the next token.
  at::Tensor loss(const at::Tensor& tokens);

  // The parts of loss(). x: (B, T, hidden).
  at::Tensor run_blocks(at::Tensor x);
  at::Tensor loss_of(const at::Tensor& x, const at::Tensor& tokens);

  static constexpr int64_t kVocab = 23;
  torch::nn::Embedding embedding;
  std::vector<std::shared_ptr<FeedForward>> blocks;
};

}  // namespace zerorun::testing
