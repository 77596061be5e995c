#include "tests/engine/tensor_support.h"

#include <algorithm>

#include "engine/gathered_parameters.h"
#include "tests/support/expectations.h"

namespace zerorun::testing {
namespace {

double largest_difference(const std::vector<double>& found, const std::vector<double>& expected) {
  double largest = 0;
  for (size_t index = 0; index < expected.size(); ++index) {
    largest = std::max(largest, std::abs(found[index] - expected[index]) / std::abs(expected[index]));
  }
  return largest;
}

// A key's bias has no effect on attention: its gradient is rounding, which Adam makes as large as any other.
bool is_rounding(const std::string& name, const std::string& optimizer) {
  return is_adam(optimizer) && (name.ends_with(".k.bias") || name.ends_with(".qkv.bias"));
}

}  // namespace

// Tokens of one data rank in one micro-step.
at::Tensor tokens_of(const DecoderOptions& options, int step, int micro, int rank) {
  at::Generator generator = at::detail::createCPUGenerator(1000 * step + 100 * micro + rank);
  return at::randint(options.vocab, {2, 7}, generator);
}

bool is_adam(const std::string& optimizer) {
  return optimizer.find("Adam") != std::string::npos;
}

// The whole job in one process, without an engine.
TrainedDecoder train_plain(const DecoderOptions& options, const std::string& optimizer, int data,
                           int accumulation, int steps) {
  Decoder model(options);
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : model->parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  std::unique_ptr<torch::optim::Optimizer> update;
  if (is_adam(optimizer)) {
    update =
        std::make_unique<torch::optim::AdamW>(trained, torch::optim::AdamWOptions(0.001).weight_decay(0));
  } else {
    update = std::make_unique<torch::optim::SGD>(trained, 0.1);
  }
  TrainedDecoder result;
  for (int step = 0; step < steps; ++step) {
    update->zero_grad();
    double loss_of_step = 0;
    for (int micro = 0; micro < accumulation; ++micro) {
      for (int rank = 0; rank < data; ++rank) {
        const at::Tensor loss = model->loss(tokens_of(options, step, micro, rank)) / (data * accumulation);
        loss.backward();
        loss_of_step += loss.item<double>();
      }
    }
    result.losses.push_back(loss_of_step);
    result.norms.push_back(torch::nn::utils::clip_grad_norm_(trained, kClip));
    update->step();
  }
  for (const auto& parameter : model->named_parameters())
    result.parameters[parameter.key()] = parameter.value().detach().clone();
  return result;
}

std::string decoder_config(int stage, const std::string& optimizer, int accumulation, const std::string& more,
                           const std::string& zero) {
  return R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
         std::to_string(accumulation) + R"(, "gradient_clipping": 0.5, "optimizer": )" + optimizer + more +
         R"(, "zero_optimization": {"stage3_param_persistence_threshold": 40, "stage": )" +
         std::to_string(stage) + zero + "}}";
}

Engine decoder_engine(torch::nn::Module& model, const std::string& config, const MeshSizes& mesh,
                      std::shared_ptr<Communicator> communicator, TensorPlan plan,
                      InitializeOptions options) {
  const int ranks = communicator->world_size();
  options.communicator = std::move(communicator);
  options.mesh = mesh;
  options.tensor_plan = std::move(plan);
  options.bucket_numel = 700;
  return initialize(model, parse_config(config, "test config", {.world_size = ranks, .mesh = mesh}), options);
}

TrainedDecoder train_decoder(Engine& engine, Decoder& model, int steps, int first, bool plain_backward) {
  TrainedDecoder result;
  const Mesh& mesh = engine.mesh();
  const int accumulation = static_cast<int>(engine.config().batch.gradient_accumulation_steps);
  for (int step = 0; step < steps; ++step) {
    at::Tensor sum = at::zeros({1}, at::kDouble);
    for (int micro = 0; micro < accumulation; ++micro) {
      const at::Tensor loss =
          model->loss(tokens_of(model->options, first + step, micro, mesh.coordinates().data));
      if (plain_backward) {
        engine.scale(loss).backward();
      } else {
        engine.backward(loss);
      }
      engine.step();
      sum += loss.item<double>() / (accumulation * mesh.data().world_size());
    }
    mesh.data().all_reduce(sum, "losses")->wait();
    result.losses.push_back(sum.item<double>());
    result.norms.push_back(engine.get_global_grad_norm());
  }
  result.parameters = whole_parameters(engine, model);
  return result;
}

void expect_like(const TrainedDecoder& found, const TrainedDecoder& expected, const std::string& optimizer) {
  expect(found.losses.size() == expected.losses.size(), "as many steps");
  expect(
      largest_difference(found.losses, expected.losses) < 1e-6,
      "losses differ by " + std::to_string(1e6 * largest_difference(found.losses, expected.losses)) + "e-6");
  expect(largest_difference(found.norms, expected.norms) < 1e-5,
         "norms differ by " + std::to_string(1e6 * largest_difference(found.norms, expected.norms)) + "e-6");
  for (const auto& [name, values] : expected.parameters) {
    if (is_rounding(name, optimizer)) continue;
    const at::Tensor& own = found.parameters.at(name);
    expect(own.sizes() == values.sizes(), name + " is whole");
    const double off = (own - values).abs().max().item<double>();
    expect(off < (is_adam(optimizer) ? 2e-4 : 2e-6), name + " differs by " + std::to_string(off));
  }
}

std::map<std::string, at::Tensor> whole_parameters(Engine& engine, Decoder& model) {
  std::map<std::string, at::Tensor> values;
  for (const auto& parameter : model->named_parameters()) {
    GatheredParameters whole(engine, {parameter.value()});
    values[parameter.key()] = parameter.value().detach().clone();
  }
  return values;
}

}  // namespace zerorun::testing
