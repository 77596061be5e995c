// Trainings with every kind of optimizer, for tests on rank-threads. A test can inspect the state of the
// engine.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_state.h"

namespace zerorun::testing {

/// One way to train: with an optimizer of the config, or with one of the program.
struct StateCase {
  std::string name;
  std::string optimizer = {};  // the config's "optimizer" section; empty: the program's optimizer
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> client = {};
  std::string zero = {};  // more keys of "zero_optimization": R"(, "sub_group_size": 5)"
  int64_t width = 61;     // number of features of the model's input
};

/// The same case with optimizer states in files of `folder`.
StateCase in_files(StateCase how, const std::filesystem::path& folder);

/// The same case at stage 3, with all slices of parameters in files of `folder`.
StateCase with_values_in_files(StateCase how, const std::filesystem::path& folder);

/// All optimizers, with the options that add state. SGD also occurs without momentum.
std::vector<StateCase> all_state_cases();

/// Two matrices, a bias and a frozen matrix, with dropout unless `dropout` is 0. At the default width no
/// parameter has a number of elements that is divisible by 2, 3 or 4 ranks.
struct StateNetImpl : torch::nn::Module {
  explicit StateNetImpl(double dropout = 0, int64_t width = 61);
  at::Tensor loss(const at::Tensor& x);

  at::Tensor first, last, bias, fixed;
  double dropout;
};
TORCH_MODULE(StateNet);

/// A model, its optimizer, and an engine whose state a test can inspect. The mesh is the config's.
struct StateTraining {
  StateTraining(const StateCase& how, int stage, const std::string& precision,
                std::shared_ptr<Communicator> communicator, const std::string& more = "", double dropout = 0,
                int64_t bucket_numel = 4096);

  /// Takes step `number` on this rank's part of a batch. The whole batch does not depend on the world size.
  /// Returns the loss before the step.
  float step(int number);

  StateNet model;
  std::unique_ptr<torch::optim::Optimizer> client;
  std::shared_ptr<EngineState> state;
  std::unique_ptr<Engine> engine;
};

}  // namespace zerorun::testing
