// A small model of marked blocks for the tests of recomputation, and its training.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

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

/// The key zerorun.recompute with `how` in it, after a comma; empty if `how` is.
std::string recomputing(const std::string& how);
/// A ds_config.json with AdamW and clipping. `more`: further keys, each after a comma. `limits`: likewise, in
/// zero_optimization.
std::string block_config(int stage, const std::string& more, int accumulation = 1,
                         const std::string& limits = "");
at::Tensor block_tokens(int step, int micro, int rank);

struct BlockRun {
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> parameters;
  std::vector<int> forwards;  // of each block
  int of_halves = 0;
  double gathered = 0;   // elements, in the last step
  int64_t in_files = 0;  // bytes
};

inline constexpr int kBlockSteps = 3;
/// Trains a model of four blocks, whose inputs are (2, 6, hidden). `plain_backward`: calls loss.backward()
/// instead of engine.backward().
BlockRun train_blocks(const std::string& config, std::shared_ptr<Communicator> communicator,
                      double dropout = 0, bool plain_backward = false, int64_t hidden = 16);
/// Throws unless losses and parameters have the same bits.
void expect_same_bits(const BlockRun& found, const BlockRun& expected);

}  // namespace zerorun::testing
