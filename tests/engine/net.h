// A small network and how the engine tests train it.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace zerorun::testing {

/// ds_config.json texts: SGD with lr 0.1 and overlap, or no optimizer at all.
std::string sgd_config(int stage, int accumulation = 1, double clipping = 0);
std::string no_optimizer_config(int stage);

Engine make_engine(torch::nn::Module& model, const std::string& config,
                   std::shared_ptr<Communicator> communicator, InitializeOptions options = {});

/// Normally distributed values from a separate generator: rank-threads share LibTorch's global one.
at::Tensor values(at::IntArrayRef sizes, uint64_t seed);
/// Fills every parameter with small values.
void fill(torch::nn::Module& model, uint64_t seed);

/// Two layers, a branch that not every forward takes, and a frozen scale.
struct NetImpl : torch::nn::Module {
  NetImpl();
  at::Tensor forward(const at::Tensor& x, bool with_branch);

  torch::nn::Linear first{nullptr}, branch{nullptr}, last{nullptr};
  at::Tensor scale, counter;
};
TORCH_MODULE(Net);

/// A batch for Net, different for each step, micro-step and rank.
at::Tensor sample(int step, int micro, int rank);

using LossOf = std::function<at::Tensor(Net&, int step, int micro, int rank)>;
/// The parameters after plain LibTorch training in one process: SGD on the mean gradient of all ranks and
/// micro-steps.
std::vector<at::Tensor> plain_sgd(int world, int accumulation, int steps, const LossOf& loss_of);

/// Throws when a parameter differs from `expected` by more than rounding: for rank-threads, where CHECK is
/// not allowed.
void check_close(const torch::nn::Module& model, const std::vector<at::Tensor>& expected);

}  // namespace zerorun::testing
