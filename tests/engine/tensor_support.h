// Shared by the tests of tensor parallelism: training a Decoder on a mesh, and in one plain process.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/mesh_support.h"
#include "tests/engine/tensor_model.h"

namespace zerorun::testing {

inline constexpr double kClip = 0.5;
inline const std::string kSgd = R"({"type": "SGD", "params": {"lr": 0.1}})";
inline constexpr MeshSizes kTwoTensorRanks{.data = 1, .tensor = 2, .pipeline = 1};
inline constexpr MeshSizes kTwoByTwo{.data = 2, .tensor = 2, .pipeline = 1};

struct TrainedDecoder {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, at::Tensor> parameters;  // whole
};

/// Tokens of one data rank in one micro-step.
at::Tensor tokens_of(const DecoderOptions& options, int step, int micro, int rank);

bool is_adam(const std::string& optimizer);

/// The whole job in one process, without an engine.
TrainedDecoder train_plain(const DecoderOptions& options, const std::string& optimizer, int data,
                           int accumulation, int steps);

/// A ds_config.json; `more`: further keys, each after a comma. `zero`: likewise, in zero_optimization.
std::string decoder_config(int stage, const std::string& optimizer, int accumulation = 1,
                           const std::string& more = "", const std::string& zero = "");

/// An engine with buckets of few parameters.
Engine decoder_engine(torch::nn::Module& model, const std::string& config, const MeshSizes& mesh,
                      std::shared_ptr<Communicator> communicator, TensorPlan plan,
                      InitializeOptions options = {});

/// `plain_backward`: calls loss.backward() instead of engine.backward(). `first`: the first step's number,
/// which chooses the samples.
TrainedDecoder train_decoder(Engine& engine, Decoder& model, int steps, int first = 0,
                             bool plain_backward = false);

/// Throws unless a run on a mesh has the losses (within 1e-6), norms (1e-5) and final parameters of a plain
/// process.
void expect_like(const TrainedDecoder& found, const TrainedDecoder& expected, const std::string& optimizer);

/// The whole values of all parameters. A collective.
std::map<std::string, at::Tensor> whole_parameters(Engine& engine, Decoder& model);

}  // namespace zerorun::testing
