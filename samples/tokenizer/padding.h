// Pads sequences of different lengths to one batch. Pure functions, safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace samples {

/// A row-major batch of `rows` x `length` tokens. `attention_mask` is 1 for a token and 0 for padding.
struct PaddedTokens {
  int64_t rows = 0;
  int64_t length = 0;
  std::vector<int64_t> tokens;
  std::vector<int64_t> attention_mask;
};

/// Truncates sequences to `max_length` tokens and pads the shorter ones on the right with `padding` to the
/// length of the longest. Gives the same result as tokenizer(texts, padding=True, truncation=True,
/// max_length=...) of the Python package `transformers`.
PaddedTokens pad(std::span<const std::vector<int32_t>> sequences, int64_t max_length, int32_t padding);

}  // namespace samples
