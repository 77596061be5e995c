#include "samples/tokenizer/trainer.h"

#include <zerorun/program.h>

#include <algorithm>
#include <numeric>
#include <queue>

#include "samples/tokenizer/byte_characters.h"

namespace samples {
namespace {

using zerorun::UserError;

constexpr const char* kFirstToken = "<|endoftext|>";
constexpr int64_t kFewestTokens = 257;

struct Word {
  std::vector<int32_t> tokens;
  int64_t count;
};

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    return (static_cast<uint64_t>(pair.first) << 32 | static_cast<uint32_t>(pair.second)) *
           0x9e3779b97f4a7c15u;
  }
};

struct PairUse {
  int64_t count = 0;
  std::vector<int32_t> words;  // indices of words that contain the pair, or once did
};

struct Candidate {
  int64_t count;
  Pair pair;
  bool operator<(const Candidate& other) const {  // the top of the queue is merged first
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Merging {
 public:
  explicit Merging(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t index = 0; index < words_.size(); ++index) {
      const std::vector<int32_t>& tokens = words_[index].tokens;
      for (size_t place = 0; place + 1 < tokens.size(); ++place)
        change({tokens[place], tokens[place + 1]}, words_[index].count, static_cast<int32_t>(index));
    }
    queue_changed();
  }

  // Sets `pair` to the pair to merge next. Returns false if there is none.
  bool next(Pair& pair) {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const int64_t count = uses_[best.pair].count;
      pair = best.pair;
      if (count == best.count) return count > 0;
      if (count > 0) queue_.push({count, best.pair});
    }
    return false;
  }

  void merge(const Pair& pair, int32_t result) {
    std::vector<int32_t> where = std::move(uses_[pair].words);
    std::ranges::sort(where);
    where.erase(std::unique(where.begin(), where.end()), where.end());
    for (const int32_t index : where) merge_in(index, pair, result);
    uses_[pair] = {};
    queue_changed();
  }

 private:
  void change(const Pair& pair, int64_t count, int32_t word) {
    PairUse& use = uses_[pair];
    use.count += count;
    if (count < 0) return;
    if (use.words.empty() || use.words.back() != word) use.words.push_back(word);
    changed_.push_back(pair);
  }

  void merge_in(int32_t index, const Pair& pair, int32_t result) {
    Word& word = words_[static_cast<size_t>(index)];
    std::vector<int32_t>& tokens = word.tokens;
    size_t kept = 0;  // the first `kept` tokens are those of the merged word
    for (size_t place = 0; place < tokens.size(); ++place) {
      const bool merges = place + 1 < tokens.size() && Pair(tokens[place], tokens[place + 1]) == pair;
      if (!merges) {
        tokens[kept++] = tokens[place];
        continue;
      }
      if (kept > 0) {
        change({tokens[kept - 1], pair.first}, -word.count, index);
        change({tokens[kept - 1], result}, word.count, index);
      }
      if (place + 2 < tokens.size()) {
        change({pair.second, tokens[place + 2]}, -word.count, index);
        change({result, tokens[place + 2]}, word.count, index);
      }
      tokens[kept++] = result;
      ++place;
    }
    tokens.resize(kept);
  }

  void queue_changed() {
    for (const Pair& pair : changed_) {
      PairUse& use = uses_[pair];
      if (use.count > 0) queue_.push({use.count, pair});
    }
    changed_.clear();
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, PairUse, PairHash> uses_;
  std::vector<Pair> changed_;
  std::priority_queue<Candidate> queue_;
};

// Returns the first tokens of a vocabulary: <|endoftext|>, then the bytes in the order of their characters.
std::vector<std::string> first_tokens() {
  std::vector<int> bytes(256);
  std::iota(bytes.begin(), bytes.end(), 0);
  std::ranges::sort(bytes, {}, [](int byte) { return byte_characters()[static_cast<size_t>(byte)]; });
  std::vector<std::string> tokens = {kFirstToken};
  for (const int byte : bytes) tokens.emplace_back(1, static_cast<char>(byte));
  return tokens;
}

}  // namespace

void TokenizerTrainer::add(std::string_view text) {
  splitter_.start(text);
  for (std::string_view word = splitter_.next(); !word.empty(); word = splitter_.next())
    ++counts_[std::string(word)];
}

Tokenizer TokenizerTrainer::train(int64_t size) const {
  if (size < kFewestTokens)
    throw UserError("a vocabulary of " + std::to_string(size) + " tokens: expected at least " +
                    std::to_string(kFewestTokens) + " (256 bytes and " + kFirstToken + ")");
  if (counts_.empty()) throw UserError("there is no text to learn a vocabulary from");
  TokenizerData data;
  data.vocabulary = first_tokens();
  data.special = {0};
  data.end_token = 0;
  std::unordered_map<std::string, int32_t> numbers;
  for (size_t token = 0; token < data.vocabulary.size(); ++token)
    numbers.emplace(data.vocabulary[token], static_cast<int32_t>(token));

  std::vector<Word> words;
  for (const auto& [text, count] : counts_) {
    Word word{{}, count};
    for (const char byte : text) word.tokens.push_back(numbers.at(std::string(1, byte)));
    words.push_back(std::move(word));
  }
  Merging merging(std::move(words));
  for (Pair pair; static_cast<int64_t>(data.vocabulary.size()) < size && merging.next(pair);) {
    const std::string merged =
        data.vocabulary[static_cast<size_t>(pair.first)] + data.vocabulary[static_cast<size_t>(pair.second)];
    const auto [token, is_new] = numbers.emplace(merged, static_cast<int32_t>(data.vocabulary.size()));
    if (is_new) data.vocabulary.push_back(merged);
    data.merges.push_back(pair);
    merging.merge(pair, token->second);
  }
  return Tokenizer(std::move(data), "the learned vocabulary");
}

}  // namespace samples
