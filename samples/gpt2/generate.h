// Generates text with a trained model, byte by byte. Every rank must make the same calls, because parameters
// may have to be gathered for them.
#pragma once

#include <cstdint>
#include <string>

#include "samples/gpt2/model.h"

namespace zerorun {

/// `count` bytes that follow `prompt` (not empty), drawn at temperature 0.8 by a generator that starts from
/// `seed`.
std::string generate(Gpt2& model, const std::string& prompt, int64_t count, uint64_t seed);

}  // namespace zerorun
