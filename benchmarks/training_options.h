// What the benchmarks of training steps have in common: options, the config, and the data.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "samples/gpt2/model.h"

namespace CLI {
class App;
}

namespace zerorun {

/// Adds --layers, --hidden, --heads, --vocab and --seq.
void add_model_options(CLI::App& app, samples::Gpt2Options& model);

/// Returns random tokens for a rank, (rows, positions); the same in every run.
at::Tensor random_tokens(const samples::Gpt2Options& model, int64_t rows, int rank);

struct TrainingOptions {
  int ranks = 2;
  int64_t micro_batch = 4;
  samples::Gpt2Options model{.layers = 6, .hidden = 512, .heads = 8, .vocab = 8192, .positions = 128};
  std::string precision = "fp32";
  bool json = false;

  /// Adds the model's options and those of all members.
  void add_to(CLI::App& app);
  /// The text of a ds_config.json: AdamW with clipped gradients, in this precision. `zero`: the section
  /// "zero_optimization".
  nlohmann::json config(nlohmann::json zero) const;
};

}  // namespace zerorun
