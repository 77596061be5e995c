// Generates tokens with a trained model. Every rank must make the same calls, because parameters may have to
// be gathered for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "samples/gpt2/model.h"

namespace zerorun {

struct GenerateOptions {
  int64_t count = 0;         // tokens
  double temperature = 0.8;  // logits are divided by it; 0: always the most probable token
  int64_t top_k = 0;         // draws among so many most probable tokens; 0: among all
  uint64_t seed = 0;
};

/// `count` tokens below `vocab` (at most the model's) that follow `prompt`, which is not empty. Where the
/// model has no position left, it goes on from the latter half of what it has seen.
std::vector<int32_t> generate(Gpt2& model, std::span<const int32_t> prompt, int64_t vocab,
                              const GenerateOptions& options);

}  // namespace zerorun
