// Trains the decoder of tensor_model.h on meshes, and in one plain process to compare with.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/tensor_model.h"

namespace zerorun::testing {

/// The gradient clipping of config_of().
inline constexpr double kClip = 0.5;

struct Trained {
  std::vector<double> losses;  // of each optimizer step, averaged over data ranks
  std::vector<double> norms;
  std::map<std::string, at::Tensor> parameters;  // whole
};

/// Tokens of one data rank in one micro-step.
at::Tensor tokens_of(const DecoderOptions& options, int step, int micro, int rank);

/// `optimizer`: the config's section.
bool is_adam(const std::string& optimizer);

/// Trains the whole job in one process, without an engine.
Trained train_plain(const DecoderOptions& options, const std::string& optimizer, int data, int accumulation,
                    int steps);

/// `more`: further sections, with a comma before each; `zero`: likewise, further keys of zero_optimization.
std::string config_of(int stage, const std::string& optimizer, int accumulation, const std::string& more = "",
                      const std::string& zero = "");

Engine engine_of(torch::nn::Module& model, const std::string& config, const MeshSizes& mesh,
                 std::shared_ptr<Communicator> communicator, TensorPlan plan);

Trained train_on(Engine& engine, Decoder& model, int steps);

/// The whole values of all parameters. A collective.
std::map<std::string, at::Tensor> whole_parameters(Engine& engine, Decoder& model);

}  // namespace zerorun::testing
