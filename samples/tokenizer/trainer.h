// Learns a byte-level BPE from text: the most frequent pair of neighbouring tokens becomes a token, again and
// again (Sennrich et al., 2016, algorithm 1). Of pairs as frequent as each other, that of the lower numbers
// comes first. The same merges as BpeTrainer's of the Python package `tokenizers`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "samples/tokenizer/tokenizer.h"
#include "samples/tokenizer/words.h"

namespace zerorun {

/// One thread.
class TokenizerTrainer {
 public:
  /// Counts the words of a text, or of parts that are cut at last_cut().
  void add(std::string_view text);
  /// A vocabulary of `size` tokens, or fewer if the text has no more pairs: <|endoftext|>, the 256 bytes, and
  /// what has been merged. Throws UserError if `size` is below 257 or there was no text.
  Tokenizer train(int64_t size) const;

 private:
  WordSplitter splitter_;
  std::unordered_map<std::string, int64_t> counts_;  // of each word
};

}  // namespace zerorun
