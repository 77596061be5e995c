// Learns a byte-level BPE from text: repeatedly makes the most frequent pair of neighbouring tokens a new
// token (Sennrich et al., 2016, algorithm 1). Of equally frequent pairs, the one with the lower token numbers
// is merged first. The merges are the same as those of BpeTrainer in the Python package `tokenizers`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "samples/tokenizer/tokenizer.h"
#include "samples/tokenizer/words.h"

namespace samples {

/// Used by one thread.
class TokenizerTrainer {
 public:
  /// Counts the words of a text, or of one part of a text that is cut at last_cut().
  void add(std::string_view text);
  /// Returns a vocabulary of `size` tokens: <|endoftext|>, the 256 bytes, and results of merges. It has fewer
  /// tokens if no pair is left to merge. Throws UserError if `size` is below 257 or there was no text.
  Tokenizer train(int64_t size) const;

 private:
  WordSplitter splitter_;
  std::unordered_map<std::string, int64_t> counts_;  // occurrences of each word
};

}  // namespace samples
