#include <utility>

#include "config/sections.h"

namespace zerorun {
namespace {

constexpr std::string_view train_key = "train_batch_size";
constexpr std::string_view micro_key = "train_micro_batch_size_per_gpu";
constexpr std::string_view steps_key = "gradient_accumulation_steps";

/// a x b, or nothing if int64_t cannot hold it.
std::optional<int64_t> product(std::optional<int64_t> a, int64_t b) {
  int64_t result = 0;
  if (!a || __builtin_mul_overflow(*a, b, &result)) return std::nullopt;
  return result;
}

struct BatchKeys {
  std::optional<int64_t> train;
  std::optional<int64_t> micro;
  std::optional<int64_t> steps;
};

std::string factors(const BatchKeys& keys, int64_t world) {
  std::string text;
  if (keys.micro) text += std::string(micro_key) + " " + std::to_string(*keys.micro) + " x ";
  if (keys.steps) text += std::string(steps_key) + " " + std::to_string(*keys.steps) + " x ";
  return text + std::to_string(world) + (world == 1 ? " rank" : " ranks");
}

/// The one of the three that is absent follows from the others; with train_batch_size alone, or the
/// micro-batch alone, there is one micro-step. Batches are never rounded.
BatchConfig multiply(const Resolution& resolution, const BatchKeys& keys, int64_t world) {
  const int64_t given_micro = keys.micro.value_or(1);
  const int64_t given_steps = keys.steps.value_or(1);
  const auto given_product = product(product(world, given_micro), given_steps);
  if (!keys.train) {
    if (!given_product) {
      resolution.report(micro_key, "a global batch that 64 bits can hold", factors(keys, world),
                        "write smaller numbers");
      return {};
    }
    return {*given_product, given_micro, given_steps};
  }
  const int64_t train = *keys.train;
  const std::string found = std::to_string(train);
  if (keys.micro && keys.steps) {
    if (given_product != train) {
      resolution.report(train_key,
                        factors(keys, world) + (given_product ? " = " + std::to_string(*given_product) : ""),
                        found, "leave out one of the three batch sizes, or change one");
    }
    return {train, given_micro, given_steps};
  }
  if (!given_product || train % *given_product != 0) {
    resolution.report(train_key, "a multiple of " + factors(keys, world), found,
                      "change it, or the number of ranks, so that every rank gets whole micro-batches");
    return {};
  }
  const int64_t rest = train / *given_product;
  return keys.micro ? BatchConfig{train, given_micro, rest} : BatchConfig{train, rest, given_steps};
}

}  // namespace

BatchConfig resolve_batch(const Resolution& resolution, std::optional<int> world_size) {
  Settings& settings = resolution.settings;
  const bool undecided =
      settings.undecided(train_key) || settings.undecided(micro_key) || settings.undecided(steps_key);
  if (!world_size || undecided) return {};
  const BatchKeys keys{settings.get<int64_t>(train_key), settings.get<int64_t>(micro_key),
                       settings.get<int64_t>(steps_key)};
  if (!keys.train && !keys.micro) {
    const bool automatic = settings.find(train_key) != nullptr;  // a program may give it
    if (automatic && resolution.purpose == Purpose::check) return {};
    resolution.report(train_key, "train_batch_size or train_micro_batch_size_per_gpu", "neither",
                      "write one of them, such as \"train_micro_batch_size_per_gpu\": 4");
    return {};
  }
  const BatchConfig batch = multiply(resolution, keys, *world_size);
  settings.derive(train_key, batch.train_batch_size);
  settings.derive(micro_key, batch.micro_batch_size_per_gpu);
  settings.derive(steps_key, batch.gradient_accumulation_steps);
  return batch;
}

}  // namespace zerorun
