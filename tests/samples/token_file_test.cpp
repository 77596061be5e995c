#include "samples/gpt2/token_file.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <iterator>
#include <numeric>

#include "samples/common/files.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace samples;
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

std::vector<int64_t> tokens_of(const TokenFile& file) {
  std::vector<int64_t> tokens(static_cast<size_t>(file.size()));
  file.copy(0, file.size(), tokens.data());
  return tokens;
}

// Returns a tokenizer with tokens for the 256 bytes and `more` other tokens. The last token ends documents.
Tokenizer with_tokens(int more) {
  TokenizerData data = Tokenizer::bytes().data();
  for (int index = 0; index < more; ++index) data.vocabulary.push_back("<" + std::to_string(index) + ">");
  data.special = {255 + more};
  data.end_token = 255 + more;
  return Tokenizer(data, "a test");
}

}  // namespace

TEST_CASE("token file: bytes are joined, and other tokenizers end each document") {
  const TemporaryFolder folder;
  const TokenSource source{{folder.write("b", "xy\xff"), folder.write("a", "12")}, "", 0};
  const TokenFile bytes(make_token_file(source, Tokenizer::bytes(), folder / "cache"));
  CHECK(tokens_of(bytes) == std::vector<int64_t>{'x', 'y', 255, '1', '2'});
  CHECK(bytes.text_bytes() == 5);
  CHECK(bytes.row_length() == 0);
  const TokenSource valid{{folder.write("c", "xy"), folder / "a"}, "", 0};
  for (const int more : {1, 70'000}) {  // the file stores a token in two bytes, or in four
    const TokenFile file(make_token_file(valid, with_tokens(more), folder / "cache"));
    CHECK(tokens_of(file) == std::vector<int64_t>{'x', 'y', 255 + more, '1', '2'});
  }
  CHECK_THAT(user_error([&] { make_token_file(source, with_tokens(1), folder / "cache"); }),
             Contains("byte 2 is not UTF-8"));
}

TEST_CASE("token file: a pipe is neither a text nor a file of tokens, and is not waited for") {
  const TemporaryFolder folder;
  const fs::path pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THAT(user_error([&] {
               make_token_file({{pipe}, "", 0}, Tokenizer::bytes(), folder / "cache");
             }),
             Contains("pipe: is no regular file"));
  CHECK_THAT(user_error([&] { TokenFile{pipe}; }), Contains("pipe: is not a complete file of tokens"));
}

TEST_CASE("token file: texts of a field are rows, cut off or filled up") {
  const TemporaryFolder folder;
  const fs::path lines =
      folder.write("lines", "{\"t\": \"abcdef\"}\n{\"t\": \"a\"}\n{\"x\": [{\"t\": \"ab\"}]}\n");
  const TokenFile file(make_token_file({{lines}, "t", 4}, with_tokens(1), folder / "cache"));
  CHECK(tokens_of(file) == std::vector<int64_t>{'a', 'b', 'c', 'd', 'a', 'b', 256, 256});
  CHECK(file.row_length() == 4);
  CHECK(file.row_tokens(0) == 4);
  CHECK(file.row_tokens(1) == 2);
}

TEST_CASE("token file: it is made once, and again if something that its tokens depend on changes") {
  const TemporaryFolder folder;
  const fs::path text = folder.write("text", "some text");
  const auto make = [&](const Tokenizer& tokenizer) {
    return make_token_file({{text}, "", 0}, tokenizer, folder / "cache");
  };
  const fs::path first = make(Tokenizer::bytes());
  const auto time = fs::last_write_time(first);
  CHECK(make(Tokenizer::bytes()) == first);
  CHECK(fs::last_write_time(first) == time);
  CHECK(make(with_tokens(1)) != first);
  folder.write("text", "some tex7");
  CHECK(make(Tokenizer::bytes()) != first);
  CHECK(std::distance(fs::directory_iterator(folder / "cache"), {}) == 3);

  const std::string good = read_text(first);
  for (const std::string& bad :
       {good.substr(0, good.size() - 1), good + "x", std::string("short"), "X" + good.substr(1)}) {
    folder.write("bad", bad);
    CHECK_THAT(user_error([&] { TokenFile(folder / "bad"); }),
               Contains("is not a complete file of tokens: delete it"));
  }
  CHECK_THAT(user_error([&] {
               make_token_file({{folder / "none"}, "", 0}, Tokenizer::bytes(), folder / "cache");
             }),
             Contains("none: cannot be opened"));
  CHECK_THAT(user_error([&] {
               make_token_file({{text}, "", 0}, Tokenizer::bytes(), text);
             }),
             Contains("cannot be created"));
}

}  // namespace zerorun::testing
