#include "benchmarks/gpu/training.h"

#include <ATen/ops/_fused_adamw.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "zero/deferred_init.h"

namespace zerorun {
namespace {

constexpr double kLearningRate = 1e-3;
constexpr double kWeightDecay = 0.01;
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr double kEps = 1e-8;

at::Tensor values_for(const std::string& name, const at::Tensor& parameter, c10::Device device) {
  const at::Tensor values =
      at::empty(parameter.sizes(), at::TensorOptions().dtype(at::kBFloat16).device(device));
  if (name.ends_with("bias")) return values.zero_();
  return name.find("ln_") != std::string::npos ? values.fill_(1) : values.normal_(0, 0.02);
}

// Builds the model without memory for its fp32 weights, and makes bf16 weights on the device: drawing a
// billion weights on the host would take longer than the measurements.
samples::Gpt2 make_model(const samples::Gpt2Options& options, c10::Device device) {
  auto build = [&] {
    const DeferredInit deferred;
    return samples::Gpt2(options);
  };
  samples::Gpt2 model = build();
  at::NoGradGuard no_grad;
  torch::manual_seed(options.seed);
  for (const auto& item : model->named_parameters()) {
    at::Tensor parameter = item.value();
    parameter.set_data(values_for(item.key(), parameter, device));
  }
  return model;
}

at::Tensor make_tokens(const ModelSize& size, c10::Device device) {
  torch::manual_seed(size.model.seed + 1);
  return at::randint(size.model.vocab, {size.micro_batch, size.model.positions},
                     at::TensorOptions().dtype(at::kLong).device(device));
}

Engine make_engine(samples::Gpt2& model, const ModelSize& size, const nlohmann::json& zero,
                   std::shared_ptr<Communicator> communicator) {
  const nlohmann::json text{
      {"train_micro_batch_size_per_gpu", size.micro_batch},
      {"bf16", {{"enabled", true}}},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", kLearningRate}, {"weight_decay", kWeightDecay}}}}},
      {"gradient_clipping", kClipping},
      {"zero_optimization", zero}};
  InitializeOptions options;
  options.communicator = std::move(communicator);
  return initialize(*model, parse_config(text.dump(), "bench_gpu", 1), options);
}

}  // namespace

ModelSize size_of(const std::string& name, bool tiny) {
  // GPT-2's 50,257 tokens padded to a multiple of 64, as is usual on GPUs.
  constexpr int64_t kVocab = 50304;
  ModelSize size{name, {.layers = 12, .hidden = 768, .heads = 12, .vocab = kVocab, .positions = 1024}, 8};
  if (name == "1.3B") {
    size.model.layers = 24;
    size.model.hidden = 2048;
    size.model.heads = 16;
    size.micro_batch = 4;
  } else if (name == "narrow") {
    size.model = {.layers = 12, .hidden = 64, .heads = 2, .vocab = 256, .positions = 32};
    size.micro_batch = 1;
  } else if (name != "124M") {
    throw UserError("no model size '" + name + "': 124M or 1.3B");
  }
  if (tiny) {
    size.model = {.layers = 2, .hidden = 32, .heads = 2, .vocab = 64, .positions = 16};
    size.micro_batch = 2;
  }
  return size;
}

int64_t count_parameters(const torch::nn::Module& model) {
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model.parameters()) parameters += parameter.numel();
  return parameters;
}

double flops_of_step(const ModelSize& size, int64_t parameters) {
  const samples::Gpt2Options& model = size.model;
  const int64_t weights = parameters - model.positions * model.hidden;
  const int64_t of_a_token = 6 * weights + 6 * model.layers * model.hidden * model.positions;
  return static_cast<double>(of_a_token) * static_cast<double>(size.tokens());
}

PlainTraining::PlainTraining(const ModelSize& size, c10::Device device)
    : model_(make_model(size.model, device)),
      tokens_(make_tokens(size, device)),
      weights_(model_->parameters()) {
  at::NoGradGuard no_grad;
  for (const at::Tensor& weight : weights_) {
    masters_.push_back(weight.to(at::kFloat));
    gradients_.push_back(at::empty_like(masters_.back()));
    first_.push_back(at::zeros_like(masters_.back()));
    second_.push_back(at::zeros_like(masters_.back()));
    steps_.push_back(at::zeros({}, masters_.back().options()));
  }
}

void PlainTraining::step(bool clips) {
  const at::Tensor loss = model_->loss(tokens_);
  loss.backward();
  loss_ = loss.detach();
  update(clips);
  drop_gradients();
}

void PlainTraining::compute_gradients() {
  model_->loss(tokens_).backward();
  drop_gradients();
}

void PlainTraining::update(bool clips) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> found;
  for (const at::Tensor& weight : weights_) found.push_back(weight.grad());
  at::_foreach_copy_(gradients_, found);
  if (clips) {
    const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients_, 2)), 2);
    at::_foreach_mul_(gradients_, (kClipping / (norm + 1e-6)).clamp_max(1.0));
  }
  at::_foreach_add_(steps_, 1);
  at::_fused_adamw_(masters_, gradients_, first_, second_, {}, steps_, kLearningRate, kBeta1, kBeta2,
                    kWeightDecay, kEps, /*amsgrad=*/false, /*maximize=*/false);
  at::_foreach_copy_(weights_, masters_);
}

void PlainTraining::drop_gradients() {
  for (at::Tensor& weight : weights_) weight.mutable_grad().reset();
}

EngineTraining::EngineTraining(const ModelSize& size, const nlohmann::json& zero,
                               std::shared_ptr<Communicator> communicator)
    : model_(make_model(size.model, communicator->device().location())),
      engine_(make_engine(model_, size, zero, communicator)),
      tokens_(make_tokens(size, communicator->device().location())) {}

void EngineTraining::step() {
  const at::Tensor loss = model_->loss(tokens_);
  engine_.backward(loss);
  engine_.step();
  loss_ = loss.detach();
}

}  // namespace zerorun
