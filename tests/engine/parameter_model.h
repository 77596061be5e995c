// A model that has given parameters and computes nothing, to be divided on any mesh: for tests of what is
// read from checkpoints.
#pragma once

#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>

#include "checkpoint/saved_state.h"
#include "engine/engine.h"
#include "tests/engine/tensor_support.h"

namespace zerorun::testing {

struct ParameterModel {
  /// The parameters of a checkpoint, with zeros; tied ones under each of their names. Tensors of other dtypes
  /// than floats are buffers. Matrices are split along their first and second dimension in turn, where each
  /// of `tensor_ranks` gets an index; each parameter is a layer of its own.
  ParameterModel(const checkpoint::SavedState& saved, int tensor_ranks);

  /// An engine on a mesh. `config`: as decoder_config().
  Engine engine(const std::string& config, const MeshSizes& mesh, std::shared_ptr<Communicator> communicator);

  std::shared_ptr<torch::nn::Module> root;
  std::map<std::string, at::Tensor> parameters;  // by name, without aliases
  std::map<std::string, at::Tensor> buffers;
  TensorPlan plan;
  Pipeline pipeline;
};

}  // namespace zerorun::testing
