#include "samples/tokenizer/tokenizer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zerorun/program.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "samples/tokenizer/byte_characters.h"

namespace samples {
namespace {

using zerorun::UserError;

constexpr size_t kLongestKnownWord = 64;  // bytes
constexpr size_t kKnownWords = 1 << 17;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

std::string in_quotes(const std::string& bytes) {
  return "'" + to_characters(bytes) + "'";
}

uint64_t hash_of(const TokenizerData& data) {
  uint64_t hash = data.add_prefix_space;
  for (const std::string& token : data.vocabulary) {
    const uint64_t length = token.size();  // distinguishes "ab", "c" from "a", "bc"
    hash = XXH3_64bits_withSeed(&length, sizeof(length), hash);
    hash = XXH3_64bits_withSeed(token.data(), token.size(), hash);
  }
  hash = XXH3_64bits_withSeed(data.merges.data(), data.merges.size() * sizeof(data.merges[0]), hash);
  hash = XXH3_64bits_withSeed(data.special.data(), data.special.size() * sizeof(int32_t), hash);
  const int32_t end = data.end_token.value_or(-1);
  return XXH3_64bits_withSeed(&end, sizeof(end), hash);
}

}  // namespace

Tokenizer::Tokenizer(TokenizerData data, const std::string& source) : data_(std::move(data)) {
  hash_ = hash_of(data_);
  find_bytes(source);
  find_merges(source);
}

Tokenizer Tokenizer::bytes() {
  Tokenizer tokenizer;
  for (int byte = 0; byte < 256; ++byte) tokenizer.data_.vocabulary.emplace_back(1, static_cast<char>(byte));
  std::iota(tokenizer.byte_tokens_, tokenizer.byte_tokens_ + 256, 0);
  tokenizer.is_bytes_ = true;
  tokenizer.hash_ = hash_of(tokenizer.data_);
  return tokenizer;
}

void Tokenizer::find_bytes(const std::string& source) {
  std::fill_n(byte_tokens_, 256, -1);
  for (size_t token = 0; token < data_.vocabulary.size(); ++token) {
    const std::string& bytes = data_.vocabulary[token];
    if (bytes.size() == 1) byte_tokens_[static_cast<uint8_t>(bytes[0])] = static_cast<int32_t>(token);
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (byte_tokens_[byte] >= 0) continue;
    throw UserError(source + ": the vocabulary has no token for the byte " + std::to_string(byte) + " (" +
                    in_quotes(std::string(1, static_cast<char>(byte))) +
                    "): expected byte-level BPE, which has one for each of the 256");
  }
}

void Tokenizer::find_merges(const std::string& source) {
  std::unordered_map<std::string_view, int32_t> numbers;
  for (size_t token = 0; token < data_.vocabulary.size(); ++token)
    numbers.emplace(data_.vocabulary[token], static_cast<int32_t>(token));
  merges_.reserve(data_.merges.size());
  for (size_t rank = 0; rank < data_.merges.size(); ++rank) {
    const auto [left, right] = data_.merges[rank];
    const std::string merged = data_.vocabulary[left] + data_.vocabulary[right];
    const auto result = numbers.find(merged);
    if (result == numbers.end()) {
      throw UserError(source + ": merge " + std::to_string(rank + 1) + " gives " + in_quotes(merged) +
                      ", which is not in the vocabulary: expected the files of one tokenizer");
    }
    merges_[pair_key(left, right)] = {static_cast<int32_t>(rank), result->second};
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  Encoder(*this).encode(text, tokens);
  return tokens;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) {
    if (token < 0 || token >= size() || data_.vocabulary[token].empty())
      throw UserError("token " + std::to_string(token) + " is not in the vocabulary of " +
                      std::to_string(size()) + " tokens");
    text += data_.vocabulary[token];
  }
  return text;
}

size_t Encoder::WordHash::operator()(std::string_view word) const {
  return XXH3_64bits(word.data(), word.size());
}

void Encoder::encode(std::string_view part, std::vector<int32_t>& tokens) {
  if (tokenizer_->is_bytes_) {
    for (const char byte : part) tokens.push_back(static_cast<uint8_t>(byte));
    return;
  }
  const TokenizerData& data = tokenizer_->data_;
  std::vector<size_t> places;  // of each special token: where it occurs next, at or after `begin`
  for (const int32_t special : data.special) places.push_back(part.find(data.vocabulary[special]));
  for (size_t begin = 0; begin < part.size();) {
    size_t end = part.size();  // end of the ordinary text before the next special token
    int32_t found = -1;
    for (size_t index = 0; index < places.size(); ++index) {
      const std::string& special = data.vocabulary[data.special[index]];
      if (places[index] < begin) places[index] = part.find(special, begin);
      const bool is_longer = found >= 0 && special.size() > data.vocabulary[found].size();
      if (places[index] > end || (places[index] == end && !is_longer)) continue;
      end = places[index];
      found = data.special[index];
    }
    encode_ordinary(part.substr(begin, end - begin), tokens);
    if (found < 0) return;
    tokens.push_back(found);
    at_start_ = true;
    begin = end + data.vocabulary[found].size();
  }
}

void Encoder::encode_ordinary(std::string_view text, std::vector<int32_t>& tokens) {
  if (text.empty()) return;
  const bool prefixed = std::exchange(at_start_, false) && tokenizer_->data_.add_prefix_space;
  if (prefixed && !text.starts_with(' ')) return encode_ordinary(" " + std::string(text), tokens);
  splitter_.start(text);
  for (std::string_view word = splitter_.next(); !word.empty(); word = splitter_.next())
    encode_word(word, tokens);
}

void Encoder::encode_word(std::string_view word, std::vector<int32_t>& tokens) {
  const auto known = known_words_.find(word);
  if (known != known_words_.end()) {
    const auto first = known_tokens_.begin() + static_cast<std::ptrdiff_t>(known->second.first);
    tokens.insert(tokens.end(), first, first + static_cast<std::ptrdiff_t>(known->second.second));
    return;
  }
  const auto before = static_cast<std::ptrdiff_t>(tokens.size());
  merge_word(word, tokens);
  if (word.size() > kLongestKnownWord || known_words_.size() >= kKnownWords) return;
  known_words_.emplace(word, std::pair(known_tokens_.size(), tokens.size() - static_cast<size_t>(before)));
  known_tokens_.insert(known_tokens_.end(), tokens.begin() + before, tokens.end());
}

void Encoder::consider(int32_t left) {
  if (left < 0 || pieces_[left].next < 0) return;
  const auto merge =
      tokenizer_->merges_.find(pair_key(pieces_[left].token, pieces_[pieces_[left].next].token));
  if (merge == tokenizer_->merges_.end()) return;
  candidates_.push_back({merge->second.rank, left, merge->second.result});
  std::push_heap(candidates_.begin(), candidates_.end());
}

void Encoder::merge_word(std::string_view word, std::vector<int32_t>& tokens) {
  pieces_.clear();
  candidates_.clear();
  const auto size = static_cast<int32_t>(word.size());
  for (int32_t index = 0; index < size; ++index)
    pieces_.push_back({tokenizer_->byte_tokens_[static_cast<uint8_t>(word[index])], index - 1,
                       index + 1 < size ? index + 1 : -1});
  for (int32_t index = 0; index + 1 < size; ++index) consider(index);
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end());
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    Piece& left = pieces_[best.left];
    if (left.token < 0 || left.next < 0) continue;
    // Skips a candidate whose pieces have changed since it was added.
    const auto merge = tokenizer_->merges_.find(pair_key(left.token, pieces_[left.next].token));
    if (merge == tokenizer_->merges_.end() || merge->second.result != best.result) continue;
    Piece& right = pieces_[left.next];
    left.token = best.result;
    left.next = right.next;
    right.token = -1;
    if (left.next >= 0) pieces_[left.next].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (int32_t index = 0; index >= 0; index = pieces_[index].next) tokens.push_back(pieces_[index].token);
}

}  // namespace samples
