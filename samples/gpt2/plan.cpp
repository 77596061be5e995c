#include "samples/gpt2/plan.h"

#include <utility>

#include "samples/gpt2/model.h"

namespace samples {

int print_plan_of(const ProgramOptions& options, const std::optional<zerorun::MeshSizes>& mesh) {
  Gpt2 model = [&] {
    const zerorun::DeferredInit deferred;
    return Gpt2(options.model);
  }();
  zerorun::InitializeOptions initialize_options;
  initialize_options.mesh = mesh;
  initialize_options.tensor_plan = model->tensor_plan();
  initialize_options.arguments = options.hyperparameters.arguments(options.steps);
  initialize_options.hidden_size = options.model.hidden;
  // Tokens of a micro-batch, and their mask.
  const auto inputs_of = [&](const zerorun::Config& config) {
    const at::Tensor tokens = at::empty({config.batch.micro_batch_size_per_gpu, options.seq},
                                        at::dtype(at::kLong).device(at::kMeta));
    return std::pair(tokens, options.field.empty() ? at::Tensor() : at::empty_like(tokens));
  };
  const auto forward = [&](zerorun::Engine& engine) {
    const auto [tokens, mask] = inputs_of(engine.config());
    return model->loss(tokens, mask);
  };
  if (options.pipeline > 1) {
    const zerorun::Config config =
        zerorun::load_config(options.deepspeed.config_file(), {.world_size = options.plan->world_size,
                                                               .mesh = mesh,
                                                               .arguments = initialize_options.arguments,
                                                               .hidden_size = options.model.hidden});
    const auto [tokens, mask] = inputs_of(config);
    initialize_options.pipeline = model->pipeline();
    initialize_options.pipeline->example = Gpt2Impl::micro_batch(tokens, mask);
  }
  return print_plan(zerorun::plan_training(*model, options.deepspeed.config_file(), *options.plan, forward,
                                           initialize_options));
}

}  // namespace samples
