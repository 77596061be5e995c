// GPT-2 with Hugging Face's parameter names, layout and initialisation: Conv1D weights are [in, out], lm_head
// is tied to transformer.wte.weight, gelu_new, learned positions, no dropout. Owned by the caller, used by
// one thread at a time.
#pragma once

#include <torch/torch.h>
#include <zerorun/engine.h>
#include <zerorun/pipeline.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace samples {

struct Gpt2Options {
  int64_t layers = 4;
  int64_t hidden = 192;
  int64_t heads = 4;  // divides hidden
  int64_t vocab = 256;
  int64_t positions = 128;  // the longest sequence
  uint64_t seed = 1234;     // of the initial weights
  double layer_norm_eps = 1e-5;
};

/// Attention keys and values of the tokens that a model has processed, so that they are computed only once.
/// Starts empty.
struct KeyValueCache {
  std::vector<std::pair<at::Tensor, at::Tensor>> layers;  // (B, heads of this rank, positions, D) each
  int64_t length = 0;                                     // tokens
};

class Gpt2Impl : public torch::nn::Module {
 public:
  explicit Gpt2Impl(const Gpt2Options& options);

  /// tokens: (B, T) int64 with T <= positions. attention_mask, if given: (B, T), 0 at padding, which no other
  /// token attends to. Returns logits (B, T, vocab) in fp32.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& attention_mask = {});
  /// Returns the logits (B, vocab) for the token after the last one, without gradients. tokens: (B, T), which
  /// follow the tokens in `cache` and are added to it. T must be 1 unless the cache is empty.
  at::Tensor next_logits(const at::Tensor& tokens, KeyValueCache& cache);
  /// Mean cross entropy of predicting each token from the tokens before it. The labels are `tokens` shifted
  /// by one. Tokens where attention_mask is 0 are not predicted.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& attention_mask = {});

  /// The labels (B, T) of tokens and an attention mask as in loss(); -100 where nothing is predicted.
  static at::Tensor labels_of(const at::Tensor& tokens, const at::Tensor& attention_mask = {});
  /// The model as layers of a pipeline, which take a micro_batch(). The loss is the mean over its labels.
  /// With a second label, of any value, the loss is the sum.
  zerorun::Pipeline pipeline();
  /// The inputs tokens, and attention_mask if there is one; the labels are those of labels_of().
  static zerorun::MicroBatch micro_batch(const at::Tensor& tokens, const at::Tensor& attention_mask = {});

  const Gpt2Options& options() const { return options_; }
  /// The number of elements of all parameters, before tensor ranks split them.
  int64_t numel() const { return numel_; }
  /// How tensor ranks split the model.
  zerorun::TensorPlan tensor_plan() const;

 private:
  struct Transformer;
  Gpt2Options options_;
  int64_t numel_ = 0;
  std::shared_ptr<Transformer> transformer_;
};
TORCH_MODULE(Gpt2);

}  // namespace samples
