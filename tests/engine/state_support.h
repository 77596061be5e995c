// Trainings of all kinds that look at what an engine keeps. For rank-threads.
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

/// One way to train: an optimizer of the config, or one of the program's own.
struct StateCase {
  std::string name;
  std::string optimizer = {};  // the config's "optimizer" block, if it has one
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> client = {};
  std::string zero = {};  // more of the config's "zero_optimization" block: R"(, "sub_group_size": 5)"
  int64_t width = 61;     // of what the model is given
};

/// The same, with optimizer states in files of that folder.
StateCase in_files(StateCase how, const std::filesystem::path& folder);

/// The same at stage 3, with all slices of parameters in files of that folder.
StateCase with_values_in_files(StateCase how, const std::filesystem::path& folder);

/// Every optimizer there is, with momentum where it can have it.
std::vector<StateCase> all_state_cases();

/// Two matrices, a bias and a frozen matrix, all of sizes that no number of ranks divides; with dropout where
/// that is not 0.
struct StateNetImpl : torch::nn::Module {
  explicit StateNetImpl(double dropout = 0, int64_t width = 61);
  at::Tensor loss(const at::Tensor& x);

  at::Tensor first, last, bias, fixed;
  double dropout;
};
TORCH_MODULE(StateNet);

/// An engine whose state can be looked at.
struct StateTraining {
  StateTraining(const StateCase& how, int stage, const std::string& precision,
                std::shared_ptr<Communicator> communicator, const std::string& more = "", double dropout = 0,
                int64_t bucket_numel = 4096);

  /// The loss of this rank's part of a batch that is the same for every number of ranks, before the step.
  float step(int number);

  StateNet model;
  std::unique_ptr<torch::optim::Optimizer> client;
  std::shared_ptr<EngineState> state;
  std::unique_ptr<Engine> engine;
};

}  // namespace zerorun::testing
