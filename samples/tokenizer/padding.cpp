#include "samples/tokenizer/padding.h"

#include <algorithm>

namespace samples {

PaddedTokens pad(std::span<const std::vector<int32_t>> sequences, int64_t max_length, int32_t padding) {
  PaddedTokens result;
  result.rows = static_cast<int64_t>(sequences.size());
  for (const auto& sequence : sequences)
    result.length = std::max(result.length, std::min(static_cast<int64_t>(sequence.size()), max_length));
  for (const auto& sequence : sequences) {
    const int64_t kept = std::min(static_cast<int64_t>(sequence.size()), max_length);
    result.tokens.insert(result.tokens.end(), sequence.begin(), sequence.begin() + kept);
    result.tokens.insert(result.tokens.end(), static_cast<size_t>(result.length - kept), padding);
    result.attention_mask.insert(result.attention_mask.end(), static_cast<size_t>(kept), 1);
    result.attention_mask.insert(result.attention_mask.end(), static_cast<size_t>(result.length - kept), 0);
  }
  return result;
}

}  // namespace samples
