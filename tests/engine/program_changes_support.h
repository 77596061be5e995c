// A small model of the tests of what programs do outside of the engine, and its training with an optimizer.
#pragma once

#include <torch/torch.h>

#include "tests/engine/net.h"

namespace zerorun::testing {

inline torch::nn::Sequential mlp() {
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3));
  fill(*model, 31);
  return model;
}

/// The same on all ranks, so that means over ranks are exact.
inline at::Tensor loss_of(torch::nn::Sequential& model, int step) {
  return model->forward(values({4, 5}, static_cast<uint64_t>(step))).square().mean();
}

template <typename Optimizer>
void train(torch::nn::Sequential& model, Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    loss_of(model, step).backward();
    optimizer.step();
  }
}

}  // namespace zerorun::testing
