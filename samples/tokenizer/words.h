// Splits text into words; byte-level BPE merges tokens only within a word. By the pattern of GPT-2's
// encoder.py a word is one of these: a run of letters, of digits or of other signs, together with the space
// before it; one of the endings 's 't 're 've 'm 'll 'd; white space.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace samples {

/// Used by one thread at a time.
class WordSplitter {
 public:
  WordSplitter();
  ~WordSplitter();
  WordSplitter(const WordSplitter&) = delete;
  WordSplitter& operator=(const WordSplitter&) = delete;

  /// Starts splitting `text`, which must outlive the calls of next(). A run of invalid UTF-8 is a word by
  /// itself.
  void start(std::string_view text);
  /// Returns the next word; empty at the end of the text.
  std::string_view next();

 private:
  struct Pattern;
  std::unique_ptr<Pattern> pattern_;
  std::string_view text_;
  size_t offset_ = 0;
  size_t valid_end_ = 0;  // text_ is valid UTF-8 from offset_ to here
};

/// Returns the last offset below `limit` at which `text` can be cut without changing its words; 0 if there is
/// none. At such an offset ASCII white space follows an ASCII character that is not white space.
size_t last_cut(std::string_view text, size_t limit);

}  // namespace samples
