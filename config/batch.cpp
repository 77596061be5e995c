#include <utility>

#include "config/sections.h"

namespace zerorun::config {
namespace {

constexpr std::string_view train_key = "train_batch_size";
constexpr std::string_view micro_key = "train_micro_batch_size_per_gpu";
constexpr std::string_view steps_key = "gradient_accumulation_steps";

/// Returns a x b, or nothing if `a` is absent or the product overflows int64_t.
std::optional<int64_t> product(std::optional<int64_t> a, int64_t b) {
  int64_t result = 0;
  if (!a || __builtin_mul_overflow(*a, b, &result)) return std::nullopt;
  return result;
}

struct BatchKeys {
  std::optional<int64_t> train;
  std::optional<int64_t> micro;
  std::optional<int64_t> steps;
  bool has_mesh;  // only the data ranks of the mesh count

  std::string in_ranks(int64_t count) const {
    return std::to_string(count) + (has_mesh ? " data" : "") + (count == 1 ? " rank" : " ranks");
  }
};

/// Writes the given factors of the global batch as text. `world` is absent if the number of ranks is unknown.
std::string factors(const BatchKeys& keys, std::optional<int> world) {
  std::string text;
  const auto add = [&](const std::string& factor) { text += (text.empty() ? "" : " x ") + factor; };
  if (keys.micro) add(std::string(micro_key) + " " + std::to_string(*keys.micro));
  if (keys.steps) add(std::string(steps_key) + " " + std::to_string(*keys.steps));
  if (world) add(keys.in_ranks(*world));
  return text;
}

/// Returns whether the batch sizes fit `world` ranks. If `world` is absent, returns whether there is a number
/// of ranks that they fit. Reports an error if they do not fit. Batch sizes are never rounded.
bool check_sizes(const Resolution& resolution, const BatchKeys& keys, std::optional<int> world) {
  const auto of_rank = product(keys.micro.value_or(1), keys.steps.value_or(1));
  const auto of_all = product(of_rank, world.value_or(1));
  if (!keys.train) {
    if (of_all) return true;
    resolution.report(micro_key, "a global batch that 64 bits can hold", factors(keys, world),
                      "write smaller numbers");
    return false;
  }
  const int64_t train = *keys.train;
  const std::string found = std::to_string(train);
  const bool all_given = keys.micro && keys.steps;
  const bool fits_some_ranks = of_rank && train % *of_rank == 0;
  if (all_given && world && of_all != train) {
    const std::string ranks = fits_some_ranks ? ", or run " + keys.in_ranks(train / *of_rank) : "";
    resolution.report(train_key, factors(keys, world) + (of_all ? " = " + std::to_string(*of_all) : ""),
                      found, "leave out one of the three batch sizes, or change one" + ranks);
    return false;
  }
  if (!of_all || train % *of_all != 0) {
    resolution.report(train_key, "a multiple of " + factors(keys, world), found,
                      world ? "change it, or the number of ranks, so that every rank gets whole micro-batches"
                            : "change one of them: no number of ranks divides this into whole micro-batches");
    return false;
  }
  if (all_given && !world) {
    resolution.note(train_key, found + " is " + factors(keys, world) + " x " +
                                   keys.in_ranks(train / *of_rank) + ": a run needs exactly that many");
  }
  return true;
}

/// Computes the batch sizes that are not given from those that are. If only train_batch_size or only the
/// micro-batch size is given, gradient_accumulation_steps is 1. `keys` must have passed check_sizes().
BatchConfig multiply(const BatchKeys& keys, int world) {
  const int64_t micro = keys.micro.value_or(1);
  const int64_t steps = keys.steps.value_or(1);
  if (!keys.train) return {micro * steps * world, micro, steps};
  const int64_t rest = *keys.train / (micro * steps * world);
  return keys.micro ? BatchConfig{*keys.train, micro, steps * rest} : BatchConfig{*keys.train, rest, steps};
}

/// Raises the accumulation of a batch for `full` data ranks, so that `data` ranks train with the same batch.
void raise_accumulation(const Resolution& resolution, int data, int full, BatchConfig& batch) {
  const std::string left =
      std::to_string(data) + " of the job's " + std::to_string(full) + " data ranks are left (--min_nodes)";
  if (resolution.settings.get<bool>("managed_gradient_accumulation") == false) {
    resolution.report(
        "managed_gradient_accumulation", "true, because " + left, "false",
        "with it the engine takes more micro-steps for the same batch; or leave out --min_nodes");
    return;
  }
  const int64_t in_all = batch.gradient_accumulation_steps * full;
  if (in_all % data != 0) {
    resolution.report(steps_key,
                      "a number whose " + std::to_string(full) + "-fold " + std::to_string(data) +
                          " divides, because " + left,
                      std::to_string(batch.gradient_accumulation_steps),
                      "choose one that as many ranks as may be left divide, with a smaller micro-batch");
    return;
  }
  batch.gradient_accumulation_steps = in_all / data;
  resolution.warn(steps_key, std::to_string(batch.gradient_accumulation_steps) + " in place of " +
                                 std::to_string(in_all / full) + ", so that train_batch_size stays " +
                                 std::to_string(batch.train_batch_size) + ": " + left);
}

}  // namespace

BatchConfig resolve_batch(const Resolution& resolution, const BatchRanks& ranks) {
  Settings& settings = resolution.settings;
  bool open = false;  // one of the three keys is "auto" without a value
  for (const std::string_view key : {train_key, micro_key, steps_key}) {
    const Setting* setting = settings.find(key);
    if (setting && setting->source == Source::refused) return {};
    open = open || settings.undecided(key);
  }
  const BatchKeys keys{settings.get<int64_t>(train_key), settings.get<int64_t>(micro_key),
                       settings.get<int64_t>(steps_key), ranks.has_mesh};
  if (!keys.train && !keys.micro) {
    const bool automatic = settings.find(train_key) || settings.find(micro_key);
    if (automatic && resolution.purpose == Purpose::check) return {};
    resolution.report(train_key, "train_batch_size or train_micro_batch_size_per_gpu", "neither",
                      "write one of them, such as \"train_micro_batch_size_per_gpu\": 4");
    return {};
  }
  const std::optional<int> world = ranks.full ? ranks.full : ranks.data;
  if (!check_sizes(resolution, keys, world) || open || !world) return {};
  BatchConfig batch = multiply(keys, *world);
  if (ranks.full) raise_accumulation(resolution, *ranks.data, *ranks.full, batch);
  settings.derive(train_key, batch.train_batch_size);
  settings.derive(micro_key, batch.micro_batch_size_per_gpu);
  settings.derive(steps_key, batch.gradient_accumulation_steps);
  return batch;
}

}  // namespace zerorun::config
