// Byte-level BPE (Sennrich et al., 2016, on bytes as GPT-2 does it): text to tokens and back. Gives the same
// tokens as the Python package `tokenizers` with the same files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "samples/tokenizer/words.h"

namespace samples {

/// The content of a tokenizer's files. `vocabulary[n]` has the bytes of token n; it is empty if there is no
/// token n. `merges` are in order of priority.
struct TokenizerData {
  std::vector<std::string> vocabulary;
  std::vector<std::pair<int32_t, int32_t>> merges;
  std::vector<int32_t> special;      // tokens that are found in the text before it is split into words
  std::optional<int32_t> end_token;  // between documents, and for padding
  bool add_prefix_space = false;     // adds a space before a text that does not start with one
};

/// Immutable, safe from any thread.
class Tokenizer {
 public:
  /// Throws UserError if a byte has no token, or if the result of a merge is not a token. The message starts
  /// with `source`.
  Tokenizer(TokenizerData data, const std::string& source);
  /// A tokenizer whose tokens are the 256 bytes.
  static Tokenizer bytes();

  const TokenizerData& data() const { return data_; }
  int64_t size() const { return static_cast<int64_t>(data_.vocabulary.size()); }
  bool is_bytes() const { return is_bytes_; }
  /// Equal for tokenizers that give the same tokens.
  uint64_t hash() const { return hash_; }
  std::vector<int32_t> encode(std::string_view text) const;
  /// The bytes that `tokens` stand for; not necessarily UTF-8. Throws UserError if an element of `tokens` is
  /// not in the vocabulary.
  std::string decode(std::span<const int32_t> tokens) const;

 private:
  friend class Encoder;
  struct Merge {
    int32_t rank;
    int32_t result;
  };

  Tokenizer() = default;
  void find_bytes(const std::string& source);
  void find_merges(const std::string& source);

  TokenizerData data_;
  bool is_bytes_ = false;
  uint64_t hash_ = 0;
  int32_t byte_tokens_[256] = {};
  std::unordered_map<uint64_t, Merge> merges_;  // key: pair_key()
};

/// Encodes large texts fast, because it caches the tokens of words. Used by one thread. `tokenizer` must
/// outlive the encoder.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  /// Begins a new text.
  void start() { at_start_ = true; }
  /// Appends the tokens of the text's next part to `tokens`. A text must be cut into parts at last_cut().
  void encode(std::string_view part, std::vector<int32_t>& tokens);

 private:
  struct Piece {  // a token in a word that is being merged
    int32_t token;
    int32_t previous, next;  // indices; -1 at the ends
  };
  struct Candidate {
    int32_t rank, left;  // left: index of the left piece
    int32_t result;
    bool operator<(const Candidate& other) const {  // order of a heap: its top is merged first
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  struct WordHash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const;
  };

  void encode_ordinary(std::string_view text, std::vector<int32_t>& tokens);
  void encode_word(std::string_view word, std::vector<int32_t>& tokens);
  void merge_word(std::string_view word, std::vector<int32_t>& tokens);
  void consider(int32_t left);

  const Tokenizer* tokenizer_;
  bool at_start_ = true;
  WordSplitter splitter_;
  std::unordered_map<std::string, std::pair<size_t, size_t>, WordHash, std::equal_to<>> known_words_;
  std::vector<int32_t> known_tokens_;  // known_words_ has the first index and the count of each word's tokens
  std::vector<Piece> pieces_;
  std::vector<Candidate> candidates_;
};

}  // namespace samples
