// A random network whose layers tensor ranks split, as a seed makes it: attention, MLPs, embeddings, norms
// and layers that stay whole, each written in one of the forms in which programs write them.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tensor_parallel/plan.h"

namespace zerorun::testing {

/// How a linear layer is written.
enum class Form { linear, functional, matmul, addmm };

struct LayerOptions {
  enum class Kind { attention, mlp, whole, gathered };
  Kind kind = Kind::mlp;
  Form form = Form::linear;
  bool bias = false;
  bool transposed = false;  // the weights are (inputs, outputs)
  bool fused = false;       // attention: one product for query, key and value; MLP: for both halves of a gate
  bool gated = false;       // MLP
  bool head_norms = false;
  bool twice = false;  // the layer is used twice
  bool frozen = false;
  int64_t heads = 4;
  int64_t key_heads = 4;  // divides heads
  int64_t inner = 8;      // MLP: units of the middle
};

struct NetworkOptions {
  std::vector<LayerOptions> layers;
  bool embeds = false;  // the input is tokens
  bool tied = false;    // the output layer is the embedding
  int64_t hidden = 8;
  int64_t head_size = 2;
  int64_t vocab = 9;
  int64_t rows = 2;
  int64_t length = 3;
};

/// Draws a network that `tensor` ranks can split.
NetworkOptions draw_network(std::mt19937_64& random, int tensor);
std::string describe(const NetworkOptions& options);

class Network : public torch::nn::Module {
 public:
  explicit Network(const NetworkOptions& options);
  /// The loss of the samples that `seed` makes.
  at::Tensor loss(uint64_t seed);
  const TensorPlan& plan() const { return plan_; }

 private:
  void add(const std::string& name, int64_t out, int64_t in, const LayerOptions& layer, TensorStyle style,
           TensorCut cut);
  at::Tensor multiply(const std::string& name, const at::Tensor& x, const LayerOptions& layer) const;
  at::Tensor attention(const std::string& name, const at::Tensor& x, const LayerOptions& layer) const;
  at::Tensor mlp(const std::string& name, const at::Tensor& x, const LayerOptions& layer) const;
  at::Tensor normed(const std::string& name, const at::Tensor& x) const;
  at::Tensor parameter(const std::string& name) const { return named_parameters()[name]; }

  NetworkOptions options_;
  TensorPlan plan_;
  uint64_t seed_ = 1;
};

}  // namespace zerorun::testing
