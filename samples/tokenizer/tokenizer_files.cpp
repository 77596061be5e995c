#include "samples/tokenizer/tokenizer_files.h"

#include <zerorun/program.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "samples/common/files.h"
#include "samples/tokenizer/byte_characters.h"

namespace samples {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;
using zerorun::UserError;

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr int64_t kMostTokens = 1 << 24;

// Reads one tokenizer from a folder.
class Reader {
 public:
  explicit Reader(const fs::path& folder) : folder_(folder) {}

  Tokenizer read() {
    std::error_code error;
    if (!fs::is_directory(folder_, error))
      throw UserError(folder_.string() +
                      ": is no folder; expected one with tokenizer.json, or with vocab.json and merges.txt");
    if (fs::exists(folder_ / "tokenizer.json", error)) {
      read_tokenizer_json();
    } else if (fs::exists(folder_ / "vocab.json", error)) {
      read_vocabulary(folder_ / "vocab.json", read_json(folder_ / "vocab.json"));
      read_merges_txt();
    } else {
      fail_without_files();
    }
    read_special_tokens();
    return Tokenizer(std::move(data_), source_.string());
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw UserError(source_.string() + ": " + what); }

  [[noreturn]] void fail_without_files() const {
    std::error_code error;
    const bool is_sentencepiece = fs::exists(folder_ / "tokenizer.model", error);
    throw UserError(
        folder_.string() + ": has neither tokenizer.json nor vocab.json with merges.txt" +
        (is_sentencepiece ? "; its tokenizer.model is SentencePiece, which is not byte-level BPE" : ""));
  }

  // Fails if `object` has a value for `key` that would change the tokens, that is, a value other than
  // `neutral`, null and "".
  void expect(const json& object, const std::string& where, const char* key, const json& neutral) const {
    const auto value = object.find(key);
    if (value == object.end() || value->is_null() || *value == neutral || *value == "") return;
    fail(where + "." + key + " is " + value->dump() + ", expected " + neutral.dump() +
         ": only byte-level BPE as GPT-2 has it can be read");
  }

  void read_tokenizer_json() {
    source_ = folder_ / "tokenizer.json";
    const json file = read_json(source_);
    const json model = file.value("model", json::object());
    const json type = model.value("type", json(model.contains("merges") ? "BPE" : "missing"));
    if (type != "BPE")
      fail("the kind of tokenizer, model.type, is " + type.dump() + ", expected \"BPE\" on bytes (GPT-2's)");
    for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
      expect(model, "model", key, nullptr);
    for (const char* key : {"byte_fallback", "ignore_merges"}) expect(model, "model", key, false);
    expect(file, "the file's", "normalizer", nullptr);
    read_word_rules(file);
    if (!model.contains("vocab")) fail("model.vocab is missing");
    read_vocabulary(source_, model["vocab"]);
    if (!model.contains("merges")) fail("model.merges is missing: expected the merges of byte-level BPE");
    read_merges(model["merges"]);
    for (const json& added : file.value("added_tokens", json::array())) read_added(added);
  }

  // Reads the rules that split text into words, and the rules that add tokens to a text.
  void read_word_rules(const json& file) {
    const json rules = file.value("pre_tokenizer", json());
    const std::string kind = rules.is_object() ? rules.value("type", "") : "null";
    if (kind != "ByteLevel" || !rules.value("use_regex", true))
      fail("pre_tokenizer is " + rules.dump().substr(0, 200) +
           ", expected {\"type\": \"ByteLevel\"} with use_regex (GPT-2's)");
    data_.add_prefix_space = rules.value("add_prefix_space", true);
    const json post = file.value("post_processor", json());
    if (!post.is_null() && post.value("type", "") != "ByteLevel")
      fail("post_processor.type is " + post.value("type", json()).dump() +
           ", expected \"ByteLevel\" or none: tokens that it adds to a text would be missing");
  }

  void read_vocabulary(const fs::path& source, const json& vocabulary) {
    source_ = source;
    if (!vocabulary.is_object()) fail("expected the vocabulary as an object {\"token\": number}");
    for (const auto& [token, number] : vocabulary.items()) {
      if (!number.is_number_integer()) fail("token '" + token + "' has no number");
      // A special token may contain characters that stand for no byte. In that case its text is used as its
      // bytes.
      place(token, number.get<int64_t>(), to_bytes(token).value_or(token));
    }
  }

  void place(const std::string& token, int64_t number, const std::string& bytes) {
    if (number < 0 || number >= kMostTokens)
      fail("token '" + token + "' has the number " + std::to_string(number) + ", expected 0 to " +
           std::to_string(kMostTokens - 1));
    if (bytes.empty()) fail("token " + std::to_string(number) + " is empty");
    if (static_cast<size_t>(number) >= data_.vocabulary.size())
      data_.vocabulary.resize(static_cast<size_t>(number) + 1);
    std::string& at = data_.vocabulary[static_cast<size_t>(number)];
    if (!at.empty() && at != bytes)
      fail("tokens '" + token + "' and '" + to_characters(at) + "' have the same number " +
           std::to_string(number));
    at = bytes;
    numbers_[token] = static_cast<int32_t>(number);
  }

  int32_t part(const std::string& token, size_t merge) const {
    const auto found = numbers_.find(token);
    if (found == numbers_.end())
      fail("merge " + std::to_string(merge + 1) + " has the part '" + token +
           "', which is not in the vocabulary: expected the files of one tokenizer");
    return found->second;
  }

  // Reads the merges of tokenizer.json: "a b", or ["a", "b"] in newer files.
  void read_merges(const json& merges) {
    for (const json& merge : merges) {
      if (merge.is_string()) {
        add_merge(merge.get<std::string>());
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        add_merge(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
      } else {
        fail("merge " + std::to_string(data_.merges.size() + 1) + " is " + merge.dump() +
             ", expected two tokens");
      }
    }
  }

  void add_merge(const std::string& merge) {
    const size_t index = data_.merges.size();
    const size_t space = merge.find(' ');
    if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos)
      fail("merge " + std::to_string(index + 1) + " is '" + merge +
           "', expected two tokens with a space between them");
    data_.merges.emplace_back(part(merge.substr(0, space), index), part(merge.substr(space + 1), index));
  }

  void read_merges_txt() {
    source_ = folder_ / "merges.txt";
    std::error_code error;
    if (!fs::exists(source_, error)) fail("is missing: vocab.json needs the merges beside it");
    const std::string text = read_text(source_);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string line = text.substr(begin, end - begin);
      if (line.ends_with('\r')) line.pop_back();
      begin = end + 1;
      const bool is_header = data_.merges.empty() && line.starts_with("#version");
      if (!line.empty() && !is_header) add_merge(line);
    }
  }

  void read_added(const json& added) {
    const std::string content = added.value("content", "");
    for (const char* key : {"lstrip", "rstrip", "single_word"})
      expect(added, "added token '" + content + "'", key, false);
    add_special(content, added.value("id", int64_t{-1}));
  }

  void add_special(const std::string& token, int64_t number) {
    place(token, number, token);
    const auto value = static_cast<int32_t>(number);
    if (std::ranges::find(data_.special, value) == data_.special.end()) data_.special.push_back(value);
  }

  // Returns the text of a token in tokenizer_config.json or special_tokens_map.json, where it is a string or
  // an object with the key "content". Empty if there is no such token.
  static std::string content_of(const json& file, const char* key) {
    const json token = file.is_object() ? file.value(key, json()) : json();
    if (token.is_string()) return token.get<std::string>();
    return token.is_object() ? token.value("content", "") : "";
  }

  void read_special_tokens() {
    const fs::path vocabulary = source_;
    std::string end_token;
    std::error_code error;
    for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
      source_ = folder_ / name;
      if (!fs::exists(source_, error)) continue;
      const json file = read_json(source_);
      for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
        const std::string token = content_of(file, key);
        if (numbers_.contains(token)) add_special(token, numbers_.at(token));
      }
      if (const std::string token = content_of(file, "eos_token"); !token.empty()) end_token = token;
      if (!file.contains("added_tokens_decoder")) continue;
      for (const auto& [number, added] : file["added_tokens_decoder"].items()) {
        json with_number = added;
        with_number["id"] = std::stoll(number);
        read_added(with_number);
      }
    }
    if (end_token.empty()) end_token = kEndOfText;
    source_ = vocabulary;
    if (!numbers_.contains(end_token)) return;
    add_special(end_token, numbers_.at(end_token));
    data_.end_token = numbers_.at(end_token);
  }

  fs::path folder_;
  fs::path source_;
  TokenizerData data_;
  std::unordered_map<std::string, int32_t> numbers_;  // key: the token as the files write it
};

bool is_special(const TokenizerData& data, size_t token) {
  return std::ranges::find(data.special, static_cast<int32_t>(token)) != data.special.end();
}

// Returns a token as the files write it.
std::string written(const TokenizerData& data, size_t token) {
  return is_special(data, token) ? data.vocabulary[token] : to_characters(data.vocabulary[token]);
}

json tokenizer_json(const TokenizerData& data, const json& vocabulary,
                    const std::vector<std::string>& merges) {
  json added = json::array();
  std::vector<int32_t> special = data.special;
  std::ranges::sort(special);
  for (const int32_t token : special) {
    added.push_back({{"id", token},
                     {"content", data.vocabulary[static_cast<size_t>(token)]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", data.add_prefix_space},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocabulary},
            {"merges", merges}}}};
}

}  // namespace

Tokenizer load_tokenizer(const fs::path& folder) {
  try {
    return Reader(folder).read();
  } catch (const json::exception& error) {
    throw UserError(folder.string() + ": the tokenizer's files are not as expected: " + error.what());
  }
}

void save_tokenizer(const Tokenizer& tokenizer, const fs::path& folder, int64_t max_length) {
  const TokenizerData& data = tokenizer.data();
  json vocabulary = json::object();
  for (size_t token = 0; token < data.vocabulary.size(); ++token) {
    if (!data.vocabulary[token].empty()) vocabulary[written(data, token)] = token;
  }
  std::vector<std::string> merges;
  std::string merges_txt = "#version: 0.2\n";
  for (const auto& [left, right] : data.merges) {
    merges.push_back(written(data, static_cast<size_t>(left)) + " " +
                     written(data, static_cast<size_t>(right)));
    merges_txt += merges.back() + "\n";
  }
  json config = {{"tokenizer_class", "GPT2Tokenizer"},
                 {"add_prefix_space", data.add_prefix_space},
                 {"model_max_length", max_length}};
  if (data.end_token) {
    for (const char* key : {"bos_token", "eos_token", "unk_token"})
      config[key] = data.vocabulary[static_cast<size_t>(*data.end_token)];
  }
  create_folder(folder);
  write_text(folder / "vocab.json", vocabulary.dump());
  write_text(folder / "merges.txt", merges_txt);
  write_text(folder / "tokenizer.json", tokenizer_json(data, vocabulary, merges).dump(1));
  write_text(folder / "tokenizer_config.json", config.dump(1));
}

}  // namespace samples
