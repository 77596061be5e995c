#include "tests/engine/pipeline_support.h"

#include "engine/gathered_parameters.h"

namespace zerorun::testing {

Pipeline pipeline_of(Decoder& model) {
  const auto all = model->named_parameters();
  auto with = [&](const std::string& prefix) {
    Tensors tensors;
    for (const auto& parameter : all) {
      if (parameter.key().starts_with(prefix)) tensors.push_back(parameter.value());
    }
    return tensors;
  };
  DecoderImpl* decoder = model.get();
  Pipeline pipeline;
  pipeline.layers.push_back({"embedding", with("embedding."), [decoder](const Tensors& inputs) {
                               return Tensors{decoder->embed(inputs.at(0))};
                             }});
  for (int64_t number = 0; number < model->options.layers; ++number) {
    const std::string name = "layers." + std::to_string(number);
    pipeline.layers.push_back({name, with(name + "."), [decoder, number](const Tensors& inputs) {
                                 return Tensors{decoder->layer(number, inputs.at(0))};
                               }});
  }
  Tensors of_head = with("last_norm.");
  for (const at::Tensor& tensor : with(model->options.tied ? "embedding." : "head."))
    of_head.push_back(tensor);
  pipeline.layers.push_back(
      {"head", of_head, [decoder](const Tensors& inputs) { return Tensors{decoder->logits(inputs.at(0))}; }});
  pipeline.cut = PipelineCut{.by = PipelineCut::By::number};
  pipeline.loss = [decoder](const Tensors& outputs, const Tensors& labels) {
    return decoder->loss_of(outputs.at(0), labels.at(0));
  };
  return pipeline;
}

Engine divided_engine(Decoder& model, const std::string& config, const MeshSizes& mesh,
                      std::shared_ptr<Communicator> communicator, std::optional<Pipeline> pipeline) {
  InitializeOptions options;
  options.pipeline = pipeline ? std::move(pipeline) : pipeline_of(model);
  return decoder_engine(*model, config, mesh, std::move(communicator), plan_of(model->options), options);
}

std::vector<MicroBatch> window_of(const DecoderOptions& options, int step, int micro_batches, int data_rank) {
  std::vector<MicroBatch> window;
  for (int micro = 0; micro < micro_batches; ++micro) {
    const at::Tensor tokens = tokens_of(options, step, micro, data_rank);
    window.push_back({{tokens}, {tokens}});
  }
  return window;
}

TrainedDecoder train_divided(Engine& engine, Decoder& model, int steps, int first) {
  TrainedDecoder result;
  const auto micro_batches = static_cast<int>(engine.config().batch.gradient_accumulation_steps);
  const int data_rank = engine.mesh().coordinates().data;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor loss =
        engine.train_batch(window_of(model->options, first + step, micro_batches, data_rank));
    result.losses.push_back(loss.item<double>());
    result.norms.push_back(engine.get_global_grad_norm());
  }
  result.parameters = parameters_of_stage(engine, model);
  return result;
}

bool is_of_stage(const at::Tensor& tensor, const Pipeline& pipeline, const Mesh& mesh) {
  const std::vector<int> begins = divide_layers(pipeline, mesh.sizes().pipeline);
  const int stage = mesh.coordinates().pipeline;
  for (int layer = begins[stage]; layer < begins[stage + 1]; ++layer) {
    for (const at::Tensor& each : pipeline.layers[layer].tensors) {
      if (each.is_same(tensor)) return true;
    }
  }
  return false;
}

std::map<std::string, at::Tensor> parameters_of_stage(Engine& engine, Decoder& model) {
  const Pipeline pipeline = pipeline_of(model);
  std::map<std::string, at::Tensor> values;
  for (const auto& parameter : model->named_parameters()) {
    if (!is_of_stage(parameter.value(), pipeline, engine.mesh())) continue;
    GatheredParameters whole(engine, {parameter.value()});
    values[parameter.key()] = parameter.value().detach().clone();
  }
  return values;
}

}  // namespace zerorun::testing
