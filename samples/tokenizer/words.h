// Splits text into the words that byte-level BPE merges within: letters, digits or other signs with the space
// before them, the endings 's 't 're 've 'm 'll 'd, and white space (the pattern of GPT-2's encoder.py).
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace zerorun {

/// One thread at a time.
class WordSplitter {
 public:
  WordSplitter();
  ~WordSplitter();
  WordSplitter(const WordSplitter&) = delete;
  WordSplitter& operator=(const WordSplitter&) = delete;

  /// The words of `text` from now on, which must stay. Invalid UTF-8 ends a word and is one by itself.
  void start(std::string_view text);
  /// The next word; empty at the end.
  std::string_view next();

 private:
  struct Pattern;
  std::unique_ptr<Pattern> pattern_;
  std::string_view text_;
  size_t offset_ = 0;
  size_t valid_end_ = 0;  // text_ is valid UTF-8 from offset_ to here
};

/// Where `text` can be cut so that both parts have the words that the whole has: the last place before
/// `limit` at which white space follows something else (ASCII). 0 if there is none.
size_t last_cut(std::string_view text, size_t limit);

}  // namespace zerorun
