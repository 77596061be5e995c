// The trainings that bench_gpu compares: a GPT-2 under the engine, and the same model in a plain LibTorch
// loop. Both in bf16 with fp32 master weights and AdamW. One thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "engine/engine.h"
#include "samples/gpt2/model.h"

namespace zerorun {

struct ModelSize {
  std::string name;
  samples::Gpt2Options model;
  int64_t micro_batch;

  int64_t tokens() const { return micro_batch * model.positions; }
};

/// Sizes by name: "124M", "1.3B", and "narrow", whose operators take a GPU less time than the host needs to
/// start them. `tiny`: all are reduced to what a CPU trains in milliseconds.
ModelSize size_of(const std::string& name, bool tiny);

int64_t count_parameters(const torch::nn::Module& model);
/// Floating-point operations of the matrix products of one forward and backward: 6 for each weight and token
/// (without position embeddings), and 6 * layers * hidden * positions for each token's causal attention.
double flops_of_step(const ModelSize& size, int64_t parameters);

inline constexpr double kClipping = 1.0;

class PlainTraining {
 public:
  PlainTraining(const ModelSize& size, c10::Device device);

  /// Forward, backward, update: gradients are converted to fp32, LibTorch's fused AdamW updates the master
  /// weights, and these are copied back to the bf16 weights. `clips`: the norm is limited to kClipping, as
  /// torch's clip_grad_norm_ does it.
  void step(bool clips);
  /// Forward and backward alone.
  void compute_gradients();
  double loss() const { return loss_.item<double>(); }
  int64_t parameters() const { return count_parameters(*model_); }

 private:
  void update(bool clips);
  void drop_gradients();

  samples::Gpt2 model_;
  at::Tensor tokens_;
  std::vector<at::Tensor> weights_;                                       // the model's parameters
  std::vector<at::Tensor> masters_, gradients_, first_, second_, steps_;  // gradients in fp32
  at::Tensor loss_;
};

class EngineTraining {
 public:
  /// `zero`: the config's zero_optimization.
  EngineTraining(const ModelSize& size, const nlohmann::json& zero,
                 std::shared_ptr<Communicator> communicator);

  void step();
  double loss() const { return loss_.item<double>(); }
  const torch::nn::Module& model() const { return *model_; }
  Engine& engine() { return engine_; }

 private:
  samples::Gpt2 model_;
  Engine engine_;
  at::Tensor tokens_;
  at::Tensor loss_;
};

}  // namespace zerorun
