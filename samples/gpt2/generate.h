// Text from a trained model, byte by byte. Every rank makes the same calls, so it stays right when parameters
// have to be gathered for them.
#pragma once

#include <cstdint>
#include <string>

#include "samples/gpt2/model.h"

namespace zerorun {

/// `count` bytes that follow `prompt` (not empty), drawn at temperature 0.8 by a generator that starts from
/// `seed`.
std::string generate(Gpt2& model, const std::string& prompt, int64_t count, uint64_t seed);

}  // namespace zerorun
