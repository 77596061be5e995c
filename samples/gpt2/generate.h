// Generates tokens with a trained model. Every rank must make the same calls, because the model's forward may
// gather parameters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "samples/gpt2/model.h"

namespace samples {

struct GenerateOptions {
  int64_t count = 0;         // tokens
  double temperature = 0.8;  // logits are divided by it; 0: always the most probable token
  int64_t top_k = 0;         // draws among this many most probable tokens; 0: among all
  uint64_t seed = 0;
};

/// Returns `count` tokens that continue `prompt`, which must not be empty. Draws only tokens below `vocab`,
/// which is at most the model's vocab. When all of the model's positions are used, generation continues from
/// the last positions / 2 tokens.
std::vector<int32_t> generate(Gpt2& model, std::span<const int32_t> prompt, int64_t vocab,
                              const GenerateOptions& options);

}  // namespace samples
