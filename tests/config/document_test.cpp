#include "config/document.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <random>
#include <string>

#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::config;
using namespace zerorun::test;

namespace {

/// Computes line and column of the byte at `offset` from the text before it.
Position place_in(const std::string& text, std::size_t offset) {
  Position place{offset, 1, 1};
  const std::size_t start = text.rfind("\xEF\xBB\xBF", 0) == 0 ? 3 : 0;
  for (std::size_t i = start; i < offset; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n' || (byte == '\r' && text[i + 1] != '\n')) {
      ++place.line;
      place.column = 1;
    } else if (byte < 0x80 || byte >= 0xC0) {
      ++place.column;
    }
  }
  return place;
}

struct Expected {
  std::string what;  // a key, or a value as flat() writes it
  std::size_t offset;
};

/// Writes random documents and records where each key and value begins.
class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}

  void document() {
    if (pick(4) == 0) text = "\xEF\xBB\xBF";
    gap();
    object(0);
    gap();
  }

  std::string text;
  std::vector<Expected> expected;

 private:
  unsigned pick(unsigned count) { return std::uniform_int_distribution<unsigned>(0, count - 1)(random_); }

  void gap() {
    static const std::vector<std::string> gaps = {
        " ",           "\t",        "\n",        "\r\n",          "\r",
        "  \n\n\t",    "// é\n",    "# {,]\"\n", "/* 漢字\r\n*/", "/* \" } */",
        "// 😀 \"\r\n", "/***//**/", "#\r"};
    while (pick(2) == 0) text += gaps[pick(static_cast<unsigned>(gaps.size()))];
  }

  void note(std::string what) { expected.push_back({std::move(what), text.size()}); }

  /// Writes a string token and records its decoded text. A number in the string keeps keys distinct.
  void string(const std::string& prefix) {
    struct Piece {
      const char* raw;
      const char* decoded;
    };
    static const std::vector<Piece> pieces = {{"a", "a"},
                                              {"// no comment", "// no comment"},
                                              {"# nor this", "# nor this"},
                                              {"/* x */", "/* x */"},
                                              {"\\\"", "\""},
                                              {"\\\\", "\\"},
                                              {"\\u00e9", "é"},
                                              {"漢😀", "漢😀"},
                                              {"},]", "},]"},
                                              {"\\n", "\n"}};
    std::string raw = "\"";
    std::string decoded = prefix;
    for (int number = count_++; number > 0; number /= 10) decoded += static_cast<char>('0' + number % 10);
    raw += decoded.substr(prefix.size());
    for (unsigned i = pick(4); i > 0; --i) {
      const Piece& piece = pieces[pick(static_cast<unsigned>(pieces.size()))];
      raw += piece.raw;
      decoded += piece.decoded;
    }
    note(decoded);
    text += raw + "\"";
  }

  void value(int depth) {
    switch (pick(depth > 5 ? 4 : 6)) {
      case 0:
        return string("string ");
      case 1:
        return word({"true", "false", "null"});
      case 2:
      case 3:
        return word({"0", "-12", "5e8", "1.25", "-0.5E-3", "18446744073709551615", "9007199254740993.0"});
      case 4:
        return array(depth + 1);
      default:
        return object(depth + 1);
    }
  }

  void word(const std::vector<std::string>& words) {
    const std::string& chosen = words[pick(static_cast<unsigned>(words.size()))];
    note(chosen);
    text += chosen;
  }

  void items(char open, char close, const std::function<void()>& item) {
    note(std::string(1, open));
    text += open;
    const unsigned count = pick(4);
    for (unsigned i = 0; i < count; ++i) {
      gap();
      item();
      gap();
      if (i + 1 < count || pick(3) == 0) text += ",";
    }
    gap();
    text += close;
  }

  void array(int depth) {
    items('[', ']', [&] { value(depth); });
  }

  void object(int depth) {
    items('{', '}', [&] {
      string("key ");
      gap();
      text += ":";
      gap();
      value(depth);
    });
  }

  std::mt19937 random_;
  int count_ = 1;
};

struct Seen {
  std::string what;
  Position at;
};

void flat(const Value& value, std::vector<Seen>& seen) {
  switch (value.kind) {
    case ValueKind::object:
      seen.push_back({"{", value.at});
      for (const DocumentMember& member : value.members) {
        seen.push_back({"key " + member.key, member.key_at});
        flat(member.value, seen);
      }
      break;
    case ValueKind::array:
      seen.push_back({"[", value.at});
      for (const Value& item : value.items) flat(item, seen);
      break;
    case ValueKind::string:
      seen.push_back({"string " + value.text, value.at});
      break;
    default:
      seen.push_back({value.literal, value.at});
  }
}

Value read(const std::string& text) {
  Diagnostics diagnostics("conf", text);
  const auto document = read_document(text, diagnostics);
  diagnostics.throw_if_any();
  REQUIRE(document);
  return *document;
}

}  // namespace

TEST_CASE("every key and value of a document has its position") {
  std::size_t places = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    Generator generator(seed);
    generator.document();
    INFO("seed " << seed << "\n" << generator.text);
    std::vector<Seen> seen;
    flat(read(generator.text), seen);
    REQUIRE(seen.size() == generator.expected.size());
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const Expected& expected = generator.expected[i];
      const Position place = place_in(generator.text, expected.offset);
      INFO(expected.what << " at byte " << expected.offset);
      REQUIRE(seen[i].what == expected.what);
      REQUIRE(seen[i].at.offset == place.offset);
      REQUIRE(seen[i].at.line == place.line);
      REQUIRE(seen[i].at.column == place.column);
    }
    places += seen.size();
  }
  CHECK(places > 10'000);
}

TEST_CASE("messages report the line and column of the mistake") {
  // Each text is inserted before the same two mistakes, and so moves them to another line or column.
  const std::vector<std::string> before = {
      "",         " ",           "\t\t",           "\n\n",
      "\r\n  ",   "\r",          "/* é漢😀 */ ",    "#\n",
      "// x\r\n", "/*\n\n*/   ", "\"fp16\": {}, ", "\"fp16\": /*😀*/ {},\r\n\t"};
  for (const std::string& first : before) {
    for (const std::string& second : before) {
      if (first.find("fp16") != std::string::npos && second.find("fp16") != std::string::npos) continue;
      const std::string text =
          "{\"train_batch_size\": 8, " + first + second + "\"stepz\": 1, \"steps_per_print\": 0}";
      INFO(text);
      const auto found = refusals(text);
      REQUIRE(found.size() == 2);
      const Position key = place_in(text, text.find("\"stepz\""));
      const Position value = place_in(text, text.find("0}"));
      CHECK(found[0].line == key.line);
      CHECK(found[0].column == key.column);
      CHECK(found[1].line == value.line);
      CHECK(found[1].column == value.column);
    }
  }
}

TEST_CASE("syntax errors are explained at their place") {
  struct Row {
    std::string text;
    std::string place;
    std::string expected;
    std::string found;
    std::string remedy;
  };
  const std::vector<Row> rows = {
      {"", "1:1 top level", "an object in braces", "an empty file", "write a configuration"},
      {" \n // nothing\n", "3:1 top level", "an object in braces", "an empty file", "write a configuration"},
      {"[1, 2]", "1:1 top level", "an object in braces", "an array", "one object"},
      {"null", "1:1 top level", "an object in braces", "null", "one object"},
      {"{\"a\": 1\n\"b\": 2}", "2:1 top level", "',' or '}'", "\"b\"",
       "put a comma after the value before it: 1,"},
      {"{\"a\": [1 2]}", "1:10 a[1]", "',' or ']'", "2", "put a comma"},
      {"{\"a\": {\"b\": 1}", "1:15 top level", "',' or '}'", "the end of the file", "line 1"},
      {"{\n\n\"a\": {\"b\": [1,\n", "4:1 a.b[1]", "a value", "the end of the file", "line 3"},
      {"{a: 1}", "1:2 top level", "a key in double quotes", "a", "put the key in double quotes: \"a\""},
      {"{'a': 1}", "1:2 top level", "a key in double quotes", "'a'", "use double quotes"},
      {"{\"a\": 'b'}", "1:7 a", "a value", "'b'", "use double quotes"},
      {"{\"a\" 1}", "1:6 a", "':' after the key", "1", "write ':' between"},
      {"{\xe2\x80\x9c"
       "a\xe2\x80\x9d: 1}",
       "1:2 top level", "a key in double quotes", "a", "U+201C"},
      {"config = {}", "1:1 top level", "an object in braces", "config", "begin with '{'"},
      {"{\"a\":\n}", "2:1 a", "a value", "}", "write the value"},
      {"{\"a\": NaN}", "1:7 a", "a value", "NaN", "finite"},
      {"{\"a\": -Infinity}", "1:7 a", "a value", "-Infinity", "finite"},
      {"{\"a\": Infinity}", "1:7 a", "a value", "Infinity", "finite"},
      {"{\"a\": True}", "1:7 a", "a value", "True", "lower case"},
      {"{\"a\": yes}", "1:7 a", "a value", "yes", "double quotes"},
      {"{\"a\": 0x2}", "1:7 a", "a value", "0x2", "decimal number"},
      {"{\"a\": [+1]}", "1:8 a[0]", "a value", "+1", "decimal number"},
      {"{\"a\": .5}", "1:7 a", "a value", ".5", "decimal number"},
      {"{\"a\": 1.}", "1:7 a", "a value", "1.", "decimal number"},
      {"{\"a\": 01}", "1:7 a", "a value", "01", "decimal number"},
      {"{\"a\": true1}", "1:7 a", "a value", "true1", ""},
      {"{\"a\": 1e999}", "1:7 a", "a number that a double can hold", "1e999", "smaller"},
      {"{\"a\": 1,,}", "1:9 top level", "a key in double quotes", ",", "remove the comma"},
      {"{,}", "1:2 top level", "a key in double quotes", ",", "remove the comma"},
      {"{\"a\": [,]}", "1:8 a[0]", "a value", ",", "remove the comma"},
      {"{\"a\": [1}", "1:9 a[1]", "',' or ']'", "}", "line 1"},
      {"{} x", "1:4 top level", "the end of the file", "x", "remove what follows"},
      {"{}}", "1:3 top level", "the end of the file", "}", "remove what follows"},
      {"{\"a\": \"x\n\"}", "1:7 a", "a string that ends on its line", "\"x", "close it"},
      {"{\"a\": \"x\\", "1:7 a", "a string that ends on its line", "\"x\\", "close it"},
      {"{\"a\": \"\\x\"}", "1:7 a", "a valid string", "forbidden character", "escape"},
      {"{\"a\": \"\xff\"}", "1:7 a", "a valid string", "UTF-8", "UTF-8"},
      {"{\"a\": \"\\ud800\"}", "1:7 a", "a valid string", "surrogate", "escape"},
      {"{ /* \n open", "1:3 top level", "'*/' at the end of the comment", "the end of the file",
       "close the comment"},
      {std::string("{\"a\": 1\0}", 9), "1:8 a", "text", "0x00", "remove it"},
      {"{\"a\": \x1b[31m}", "1:7 a", "text", "0x1B", "remove it"},
      {"\xFF\xFE{", "1:1 top level", "UTF-8 text", "UTF-16", "UTF-8"},
      {"\xEF\xBB\xBF{\"a\" 1}", "1:6 a", "':' after the key", "1", ""},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    const auto found = refusals(row.text);
    REQUIRE(found.size() == 1);
    CHECK(found[0].place() == row.place);
    CHECK(found[0].expected == row.expected);
    CHECK_THAT(found[0].found, Catch::Contains(row.found));
    CHECK_THAT(found[0].remedy, Catch::Contains(row.remedy));
  }
}

TEST_CASE("a duplicate key is refused with both lines, wherever it is and however it is written") {
  auto found =
      refusals("{\"train_batch_size\": 8,\n\"bf16\": {\"enabled\": false,\n \"en\\u0061bled\": false}}");
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "3:2 bf16.enabled");
  CHECK(found[0].found == "\"en\\u0061bled\" again, first on line 2");

  found = refusals("{\"train_batch_size\": 8,\n\n\"train_batch_size\": 8, \"train_batch_size\": 8}");
  REQUIRE(found.size() == 2);
  CHECK(found[0].place() == "3:1 train_batch_size");
  CHECK(found[1].place() == "3:24 train_batch_size");
  CHECK_THAT(found[1].found, Catch::Contains("first on line 1"));

  // The same name in two different objects is no duplicate.
  CHECK(refusals("{\"train_batch_size\": 8, \"fp16\": {\"enabled\": false}, \"bf16\": {\"enabled\": false}}")
            .empty());
}

TEST_CASE("nesting up to the limit is accepted, and any deeper nesting is refused") {
  const auto nested = [](std::size_t arrays) {
    return "{\"a\": " + std::string(arrays, '[') + std::string(arrays, ']') + "}";
  };
  CHECK(read(nested(max_nesting - 1)).members.size() == 1);
  for (const std::size_t depth : {max_nesting, std::size_t{1'000'000}}) {
    const auto found = refusals(nested(depth));
    REQUIRE(found.size() == 1);
    CHECK(found[0].line == 1);
    CHECK(found[0].column == static_cast<int>(6 + max_nesting));
    CHECK(found[0].expected == "at most 100 levels of nesting");
  }
}

TEST_CASE("a damaged document is read or refused, and does not crash the reader") {
  const std::string sound =
      "// é\n{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9, "
      "0.95,],\r\n"
      "\"lr\": 1e-3}}, /* 漢 */ \"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 5e8}, # x\n}";
  REQUIRE(refusals(sound).empty());
  for (std::size_t length = 0; length + 1 < sound.size(); ++length)
    CHECK(!refusals(sound.substr(0, length)).empty());
  std::mt19937 random(7);
  const std::string inserts = "{}[],:\"/*#\\'0eE+-.tn\n\r\t \x01\x80\xff";
  const auto pick = [&](std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
  };
  for (int round = 0; round < 5000; ++round) {
    std::string text = sound;
    for (std::size_t edits = 1 + pick(3); edits > 0; --edits) {
      const std::size_t at = pick(text.size());
      if (pick(2) == 0) {
        text.erase(at, 1 + pick(4));
      } else {
        text.insert(at, 1, inserts[pick(inserts.size())]);
      }
    }
    INFO(text);
    const auto breaks = std::ranges::count_if(text, [](char c) { return c == '\r' || c == '\n'; });
    for (const Refusal& refusal : refusals(text)) CHECK(refusal.line <= 1 + breaks);
  }
}
