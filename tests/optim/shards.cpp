#include "tests/optim/shards.h"

#include <cstring>
#include <random>

#include "device/step_facts.h"

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

BorrowMoment lend() {
  return [](const Shard& shard, const char* /*name*/) { return at::zeros({shard.values.numel()}); };
}

BorrowMoment lend_counted(int64_t& bytes) {
  return [&bytes](const Shard& shard, const char* /*name*/) {
    at::Tensor moment = at::zeros({shard.values.numel()});
    bytes += static_cast<int64_t>(moment.nbytes());
    return moment;
  };
}

AdamConfig adam(bool decoupled) {
  return {.lr = 0.01, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .decoupled = decoupled};
}

SgdConfig sgd(double momentum) {
  return {.lr = 0.05, .weight_decay = 0.1, .momentum = momentum};
}

AdagradConfig adagrad() {
  return {.lr = 0.05, .weight_decay = 0.1};
}

RmspropConfig rmsprop(double momentum, bool centered) {
  return {.weight_decay = 0.1, .alpha = 0.9, .momentum = momentum, .centered = centered};
}

LionConfig lion() {
  return {.lr = 0.01, .weight_decay = 0.1, .beta2 = 0.95};
}

std::vector<OptimizerConfig> all_optimizers() {
  std::vector<OptimizerConfig> all;
  for (const bool amsgrad : {false, true}) {
    for (const bool decoupled : {true, false}) {
      AdamConfig config = adam(decoupled);
      config.amsgrad = amsgrad;
      all.emplace_back(config);
    }
  }
  for (const double momentum : {0.0, 0.9}) all.emplace_back(sgd(momentum));
  SgdConfig nesterov = sgd(0.9);
  nesterov.nesterov = true;
  all.emplace_back(nesterov);
  all.emplace_back(adagrad());
  AdagradConfig filled = adagrad();
  filled.initial_accumulator_value = 0.4;
  all.emplace_back(filled);
  for (const double momentum : {0.0, 0.9}) {
    for (const bool centered : {false, true}) all.emplace_back(rmsprop(momentum, centered));
  }
  all.emplace_back(lion());
  return all;
}

}  // namespace zerorun::testing
