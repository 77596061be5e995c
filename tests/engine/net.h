// A small network for the engine's tests, its data, and its training with the engine or with plain LibTorch.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace zerorun::testing {

/// Texts of ds_config.json: SGD with lr 0.1 and overlap, and a config without an optimizer.
std::string sgd_config(int stage, int accumulation = 1, double clipping = 0);
std::string no_optimizer_config(int stage);

Engine make_engine(torch::nn::Module& model, const std::string& config,
                   std::shared_ptr<Communicator> communicator, InitializeOptions options = {});

/// Normally distributed values from a generator of their own, since rank-threads share LibTorch's default
/// generator.
at::Tensor values(at::IntArrayRef sizes, uint64_t seed);
/// Fills every parameter with small random values.
void fill(torch::nn::Module& model, uint64_t seed);

/// Copies of a model's parameters.
std::vector<at::Tensor> copies_of(const torch::nn::Module& model);
inline std::vector<at::Tensor> copies_of(const torch::nn::Sequential& model) {
  return copies_of(*model);
}

/// Two layers, a third layer that is used only in forwards with a branch, and a frozen scale.
struct NetImpl : torch::nn::Module {
  NetImpl();
  at::Tensor forward(const at::Tensor& x, bool with_branch);

  torch::nn::Linear first{nullptr}, branch{nullptr}, last{nullptr};
  at::Tensor scale, counter;
};
TORCH_MODULE(Net);

/// A batch for Net. It differs between steps, micro-steps and ranks.
at::Tensor sample(int step, int micro, int rank);

using LossOf = std::function<at::Tensor(Net&, int step, int micro, int rank)>;
/// The parameters after training with plain LibTorch in one process: SGD on the mean gradient of all ranks
/// and micro-steps.
std::vector<at::Tensor> plain_sgd(int world, int accumulation, int steps, const LossOf& loss_of);

/// Throws if a parameter differs from `expected` by more than rounding. For rank-threads, which may not use
/// CHECK.
void check_close(const torch::nn::Module& model, const std::vector<at::Tensor>& expected);

}  // namespace zerorun::testing
