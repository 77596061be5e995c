// The optimizers of torch::optim that programs give to the engine, and that plain LibTorch runs for them.
#pragma once

#include <torch/torch.h>

#include <array>
#include <memory>
#include <vector>

#include "tests/random_programs/program.h"

namespace zerorun::testing {

inline constexpr int kGroups = 2;
inline constexpr double kLearningRate = 0.125;
inline constexpr double kWeightDecay = 0.0625;
inline constexpr unsigned kStepSize = 2;  // StepLR halves the rates after this many steps

/// By parameter group. The second group has half the learning rate of the first.
using Groups = std::array<std::vector<at::Tensor>, kGroups>;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Setup& setup, const Groups& groups);
void set_decay(torch::optim::Optimizer& optimizer, int group, double decay);
/// Sets the momentum of an SGD optimizer.
void set_momentum(torch::optim::Optimizer& optimizer, double momentum);
/// Gives the optimizer the state of `parameter` behind `steps` steps. Its moments are these tensors then.
void set_state(torch::optim::Optimizer& optimizer, const Setup& setup, const at::Tensor& parameter,
               int64_t steps, const at::Tensor& first, const at::Tensor& second);
/// The engine's name of the first moment; empty if there is none.
std::string name_of_moment(const Setup& setup);

}  // namespace zerorun::testing
