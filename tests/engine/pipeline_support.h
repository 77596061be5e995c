// Shared by the tests of pipelines: a Decoder as a list of layers, and its training on a mesh.
#pragma once

#include <string>
#include <vector>

#include "pipeline/layers.h"
#include "tests/engine/tensor_support.h"

namespace zerorun::testing {

inline const std::string kAdam = R"({"type": "AdamW", "params": {"lr": 0.003}})";
inline const DecoderOptions kSmall = {.layers = 4};

/// The embedding, each layer, and the head.
Pipeline pipeline_of(Decoder& model);

/// An engine with buckets of few parameters. `pipeline`: default pipeline_of(model).
Engine divided_engine(Decoder& model, const std::string& config, const MeshSizes& mesh,
                      std::shared_ptr<Communicator> communicator, std::optional<Pipeline> pipeline = {});

/// Windows of `micro_batches`, whose samples are those of train_plain().
std::vector<MicroBatch> window_of(const DecoderOptions& options, int step, int micro_batches, int data_rank);

/// Trains by train_batch(). The parameters are those of this rank's stage.
TrainedDecoder train_divided(Engine& engine, Decoder& model, int steps, int first = 0);

/// Whether the tensor is one of this rank's stage.
bool is_of_stage(const at::Tensor& tensor, const Pipeline& pipeline, const Mesh& mesh);

/// The whole values of the parameters of this rank's stage. A collective.
std::map<std::string, at::Tensor> parameters_of_stage(Engine& engine, Decoder& model);

}  // namespace zerorun::testing
