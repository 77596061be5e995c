#include "tests/optim/shards.h"

#include <cstring>
#include <random>

namespace zerorun::testing {

at::Tensor uniform(int64_t numel, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> distribution(0.01f, 1.0f);
  at::Tensor tensor = at::empty({numel});
  float* values = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < numel; ++i) values[i] = (random() % 2 ? 1.0f : -1.0f) * distribution(random);
  return tensor;
}

at::Tensor gradient_of(int64_t index, int step, int64_t numel) {
  return uniform(numel, 1'000'003 * static_cast<uint64_t>(index + 1) + static_cast<uint64_t>(step));
}

void Tensors::add(int64_t numel, int group) {
  values.push_back(uniform(numel, values.size()));
  gradients.push_back(at::zeros({numel}));
  groups.push_back(group);
}

void Tensors::set_gradients(int step) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    gradients[i].copy_(gradient_of(static_cast<int64_t>(i), step, gradients[i].numel()));
  }
}

std::vector<Shard> Tensors::shards(int slices) const {
  std::vector<Shard> shards;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t length = values[i].numel() / slices;
    for (int slice = 0; slice < slices; ++slice) {
      shards.push_back({.values = values[i].narrow(0, slice * length, length),
                        .gradient = gradients[i].narrow(0, slice * length, length),
                        .rounded = {},
                        .group = groups[i]});
    }
  }
  return shards;
}

at::Tensor facts(double divisor, bool apply) {
  const StepFacts facts{
      .norm = 1, .divisor = divisor, .factor = static_cast<float>(1 / divisor), .apply = apply ? 1 : 0};
  at::Tensor tensor = at::zeros({kFactsNumel}, at::kDouble);
  std::memcpy(tensor.mutable_data_ptr(), &facts, sizeof facts);
  return tensor;
}

OptimizerConfig adam(OptimizerType type) {
  OptimizerConfig config;
  config.type = type;
  config.lr = 0.01;
  config.beta1 = 0.8;
  config.beta2 = 0.95;
  config.eps = 1e-3;
  config.weight_decay = 0.1;
  return config;
}

OptimizerConfig sgd(double momentum) {
  OptimizerConfig config;
  config.type = OptimizerType::sgd;
  config.lr = 0.05;
  config.momentum = momentum;
  config.weight_decay = 0.1;
  return config;
}

OptimizerConfig adagrad() {
  OptimizerConfig config;
  config.type = OptimizerType::adagrad;
  config.lr = 0.05;
  config.eps = 1e-10;
  config.weight_decay = 0.1;
  return config;
}

OptimizerConfig rmsprop(double momentum, bool centered) {
  OptimizerConfig config;
  config.type = OptimizerType::rmsprop;
  config.lr = 0.01;
  config.alpha = 0.9;
  config.momentum = momentum;
  config.centered = centered;
  config.weight_decay = 0.1;
  return config;
}

OptimizerConfig lion() {
  OptimizerConfig config;
  config.type = OptimizerType::lion;
  config.lr = 0.01;
  config.beta2 = 0.95;
  config.weight_decay = 0.1;
  return config;
}

std::vector<OptimizerConfig> all_optimizers() {
  std::vector<OptimizerConfig> all = {adam(OptimizerType::adam_w), adam(OptimizerType::adam)};
  for (const OptimizerConfig& config : {all[0], all[1]}) all.emplace_back(config).amsgrad = true;
  for (const double momentum : {0.0, 0.9}) all.push_back(sgd(momentum));
  all.emplace_back(sgd(0.9)).nesterov = true;
  all.push_back(adagrad());
  all.emplace_back(adagrad()).initial_accumulator_value = 0.4;
  for (const double momentum : {0.0, 0.9}) {
    for (const bool centered : {false, true}) all.push_back(rmsprop(momentum, centered));
  }
  all.push_back(lion());
  return all;
}

}  // namespace zerorun::testing
