// Sequences of different lengths as one batch. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace zerorun {

/// Row after row; `attention_mask` is 1 for a token and 0 for padding.
struct PaddedTokens {
  int64_t rows = 0;
  int64_t length = 0;
  std::vector<int64_t> tokens;
  std::vector<int64_t> attention_mask;
};

/// Cuts sequences off behind `max_length` tokens and fills the shorter ones up with `padding`, on the right,
/// to the length of the longest: transformers' tokenizer(texts, padding=True, truncation=True,
/// max_length=...).
PaddedTokens pad(std::span<const std::vector<int32_t>> sequences, int64_t max_length, int32_t padding);

}  // namespace zerorun
