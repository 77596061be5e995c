// Tests the tokenizer without Python. tokenizers_test.cpp compares it with the Python package `tokenizers`.
#include "samples/tokenizer/tokenizer.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "samples/common/files.h"
#include "samples/tokenizer/byte_characters.h"
#include "samples/tokenizer/text_reader.h"
#include "samples/tokenizer/tokenizer_files.h"
#include "samples/tokenizer/trainer.h"
#include "samples/tokenizer/utf8.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace samples;
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using nlohmann::json;

std::vector<std::string> words_of(const std::string& text) {
  WordSplitter splitter;
  splitter.start(text);
  std::vector<std::string> words;
  for (auto word = splitter.next(); !word.empty(); word = splitter.next()) words.emplace_back(word);
  return words;
}

// Returns a vocabulary of the 256 bytes, with the merges "a"+"b", "ab"+"c", "b"+"c" in this order.
TokenizerData small_data() {
  TokenizerData data;
  for (int byte = 0; byte < 256; ++byte) data.vocabulary.emplace_back(1, static_cast<char>(byte));
  for (const char* merged : {"ab", "abc", "bc", "<end>"}) data.vocabulary.emplace_back(merged);
  data.merges = {{'a', 'b'}, {256, 'c'}, {'b', 'c'}};
  data.special = {259};
  data.end_token = 259;
  return data;
}

std::string load_error(const TemporaryFolder& folder) {
  return user_error([&] { load_tokenizer(folder / ""); });
}

}  // namespace

TEST_CASE("tokenizer: each byte has a printable character, and each of these characters has its byte") {
  CHECK(to_characters("\n a!\x7f\xad") == "ĊĠa!ġŃ");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  CHECK(to_bytes(to_characters(all)) == all);
  CHECK(!to_bytes("日"));
  CHECK(!to_bytes(" "));
}

TEST_CASE("tokenizer: invalid UTF-8 is found, and replaced as Python does it") {
  const std::pair<std::string, size_t> prefixes[] = {{"", 0},
                                                     {"plain ASCII text", 16},
                                                     {"\xc3\xa9", 2},
                                                     {"a\xc3", 1},
                                                     {"\xc0\x80", 0},
                                                     {"\xed\xa0\x80", 0},
                                                     {"\xf4\x90\x80\x80", 0},
                                                     {"\xf0\x9f\x98\x80", 4},
                                                     {"eight by\xff", 8},
                                                     {"\x80", 0}};
  for (const auto& [text, expected] : prefixes) CHECK(valid_utf8_prefix(text) == expected);
  // This is the example of the Unicode standard, table 3-8.
  CHECK(replace_invalid_utf8("a\xf1\x80\x80\xe1\x80\xc2"
                             "b\x80"
                             "c\x80\xbf"
                             "d") == "a\ufffd\ufffd\ufffdb\ufffdc\ufffd\ufffdd");
  CHECK(replace_invalid_utf8("\xed\xa0\x80") == "\ufffd\ufffd\ufffd");
}

TEST_CASE("tokenizer: words are GPT-2's") {
  using Words = std::vector<std::string>;
  CHECK(words_of("I'll go, you've 42  apples\n\n now") ==
        Words{"I", "'ll", " go", ",", " you", "'ve", " 42", " ", " apples", "\n\n", " now"});
  CHECK(words_of("  ") == Words{"  "});
  CHECK(words_of("naïve 日本語!?") == Words{"naïve", " 日本語", "!?"});
  CHECK(words_of("a\xff\xfe"
                 "b") == Words{"a", "\xff\xfe", "b"});
  CHECK(words_of("").empty());
  const std::string text = "one two\nthree";
  CHECK(last_cut(text, text.size()) == 7);
  CHECK(last_cut(text, 7) == 3);
  CHECK(last_cut("unbroken", 8) == 0);
}

TEST_CASE("tokenizer: pairs merge by priority, and special tokens stand by themselves") {
  const Tokenizer tokenizer(small_data(), "a test");
  using Tokens = std::vector<int32_t>;
  CHECK(tokenizer.encode("abc") == Tokens{257});
  CHECK(tokenizer.encode("bcab") == Tokens{258, 256});
  CHECK(tokenizer.encode("aabcc") == Tokens{'a', 257, 'c'});
  CHECK(tokenizer.encode("<end><end>x<end") == Tokens{259, 259, 'x', '<', 'e', 'n', 'd'});
  CHECK(tokenizer.decode(tokenizer.encode("x\xff abc<end>")) == "x\xff abc<end>");
  CHECK(tokenizer.decode({}) == "");
  CHECK_THAT(user_error([&] { tokenizer.decode(Tokens{260}); }),
             Contains("token 260 is not in the vocabulary of 260"));
  CHECK(Tokenizer::bytes().encode("a\xff") == Tokens{'a', 255});
  CHECK(Tokenizer::bytes().hash() != tokenizer.hash());
  TokenizerData prefixing = small_data();
  prefixing.add_prefix_space = true;
  CHECK(Tokenizer(prefixing, "").encode("abc<end> x") == Tokens{' ', 257, 259, ' ', 'x'});

  TokenizerData without_byte = small_data();
  without_byte.vocabulary['q'] = "qq";
  CHECK_THAT(user_error([&] { Tokenizer(without_byte, "FILE"); }),
             StartsWith("FILE: the vocabulary has no token for the byte 113 ('q')"));
  TokenizerData strange_merge = small_data();
  strange_merge.merges.emplace_back('x', 'y');
  CHECK_THAT(user_error([&] { Tokenizer(strange_merge, "FILE"); }), StartsWith("FILE: merge 4 gives 'xy'"));
}

TEST_CASE("tokenizer: a word of a million bytes is merged in less than quadratic time") {
  const Tokenizer tokenizer(small_data(), "a test");
  std::string word;
  for (int i = 0; i < 333'333; ++i) word += "abc";
  const std::vector<int32_t> tokens = tokenizer.encode(word);
  CHECK(tokens == std::vector<int32_t>(333'333, 257));
}

TEST_CASE("tokenizer: a saved tokenizer can be loaded from either kind of file") {
  const TemporaryFolder folder;
  const std::string text = "the cat sat on the mat, the cat sat\n";
  TokenizerTrainer trainer;
  trainer.add(text);
  const Tokenizer learned = trainer.train(265);
  CHECK(learned.size() == 265);
  // "at" is the first merge, since it occurs five times, and no other pair occurs more than three times.
  CHECK(learned.data().vocabulary[257] == "at");
  save_tokenizer(learned, folder / "saved", 64);
  for (const char* removed : {"tokenizer.json", "tokenizer_config.json"}) {
    const Tokenizer loaded = load_tokenizer(folder / "saved");
    CHECK(loaded.data().vocabulary == learned.data().vocabulary);
    CHECK(loaded.data().merges == learned.data().merges);
    CHECK(loaded.data().end_token == 0);
    CHECK(loaded.hash() == learned.hash());
    CHECK(loaded.encode(text + "<|endoftext|>") == learned.encode(text + "<|endoftext|>"));
    std::filesystem::remove(folder / "saved" / removed);
  }
  CHECK_THAT(user_error([&] { trainer.train(256); }), Contains("256 tokens: expected at least 257"));
  CHECK_THAT(user_error([&] { TokenizerTrainer().train(300); }), Contains("no text"));
}

TEST_CASE("tokenizer: other kinds and broken files are refused by name") {
  const TemporaryFolder folder;
  CHECK_THAT(user_error([&] { load_tokenizer(folder / "none"); }), Contains("none: is no folder"));
  CHECK_THAT(load_error(folder), Contains("has neither tokenizer.json nor vocab.json with merges.txt"));
  folder.write("tokenizer.model", "x");
  CHECK_THAT(load_error(folder), Contains("SentencePiece"));
  folder.write("vocab.json", "{\"a\": 0,");
  CHECK_THAT(load_error(folder), Contains("vocab.json: expected JSON") && Contains("line 1"));
  save_tokenizer(Tokenizer(small_data(), ""), folder / "", 8);
  const json good = read_json(folder / "tokenizer.json");
  const auto with = [&](const std::string& pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    folder.write("tokenizer.json", changed.dump());
    return load_error(folder);
  };
  CHECK_THAT(with("/model/type", "Unigram"), Contains("model.type, is \"Unigram\""));
  CHECK_THAT(with("/model/byte_fallback", true), Contains("model.byte_fallback is true, expected false"));
  CHECK_THAT(with("/model/unk_token", "[UNK]"), Contains("model.unk_token is \"[UNK]\""));
  CHECK_THAT(with("/normalizer", json{{"type", "NFC"}}), Contains("normalizer is"));
  CHECK_THAT(with("/pre_tokenizer", json{{"type", "Metaspace"}}),
             Contains("pre_tokenizer is") && Contains("Metaspace"));
  CHECK_THAT(with("/pre_tokenizer/use_regex", false), Contains("pre_tokenizer is"));
  CHECK_THAT(with("/post_processor", json{{"type", "RobertaProcessing"}}), Contains("RobertaProcessing"));
  CHECK_THAT(with("/added_tokens/0/lstrip", true), Contains("added token '<end>'.lstrip is true"));
  CHECK_THAT(with("/added_tokens/0/id", 97), Contains("have the same number 97"));
  CHECK_THAT(with("/model/merges/0", "a b c"), Contains("merge 1 is 'a b c'"));
  CHECK_THAT(with("/model/merges/0", 7), Contains("merge 1 is 7"));
  CHECK_THAT(with("/model/merges/1", "ab zz"), Contains("merge 2 has the part 'zz'"));
  CHECK_THAT(with("/model/merges/2", json::array({"b", "c"})), StartsWith("no error"));
  CHECK_THAT(with("/model/vocab/x", -5), Contains("'x' has the number -5"));
  CHECK_THAT(with("/model/vocab/x", "y"), Contains("'x' has no number"));
  CHECK_THAT(with("/model/vocab", 5), Contains("expected the vocabulary as an object"));
  folder.write("tokenizer.json", "[1]");
  CHECK_THAT(load_error(folder), StartsWith((folder / "").string()));
  std::filesystem::remove(folder / "tokenizer.json");
  std::filesystem::remove(folder / "merges.txt");
  CHECK_THAT(load_error(folder), Contains("merges.txt: is missing"));
}

TEST_CASE("tokenizer: a text is read in parts that have the words of the whole") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; text.size() < 3'000'000; ++i)
    text += "word" + std::to_string(i) + (i % 7 ? " " : " \n\n ") + "日本";
  const std::string unbroken(1'500'000, 'x');
  text += unbroken;
  const Tokenizer tokenizer(small_data(), "a test");
  TextReader reader(folder.write("text", text));
  Encoder encoder(tokenizer);
  std::vector<int32_t> tokens;
  int parts = 0;
  for (auto part = reader.next(); !part.empty(); part = reader.next(), ++parts) encoder.encode(part, tokens);
  CHECK(parts > 2);
  CHECK(tokens == tokenizer.encode(text));

  CHECK_THAT(user_error([&] { TextReader(folder.write("empty", "")); }),
             Contains("empty: the file is empty"));
  CHECK_THAT(user_error([&] { TextReader(folder / ""); }), Contains("is a folder"));
  CHECK_THAT(user_error([&] { TextReader(folder / "none"); }), Contains("none: cannot be opened"));
  TextReader latin(folder.write("latin", std::string(2'000'000, ' ') + "caf\xe9 au lait"));
  CHECK_THAT(user_error([&] {
               while (!latin.next().empty()) continue;
             }),
             Contains("latin: byte 2000003 is not UTF-8"));
}

}  // namespace zerorun::testing
