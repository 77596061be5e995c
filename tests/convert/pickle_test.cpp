// Tests the reader of pickles: values of each opcode (bytes as Python 3.11's pickle.dumps writes them), and
// hostile pickles, which call functions, never end, or need unbounded memory.
#include "convert/pickle.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>

#include "convert/pickle_fields.h"
#include "tests/support/temporary_folder.h"

#ifndef __SANITIZE_ADDRESS__  // AddressSanitizer has an operator new of its own

namespace {

// The bytes that operator new has allocated and nobody has freed yet, and their maximum since the last reset.
std::atomic<int64_t> allocated = 0;
std::atomic<int64_t> peak = 0;

}  // namespace

void* operator new(size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  const int64_t now = allocated += static_cast<int64_t>(::malloc_usable_size(memory));
  if (now > peak) peak = now;
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory) allocated -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}

#endif

namespace zerorun::testing {
using namespace convert;
namespace {

using Catch::Matchers::Contains;

Pickle parse(const std::string& bytes) {
  return Pickle(std::as_bytes(std::span(bytes)), "x.pt");
}

std::string json_of(const std::string& bytes) {
  const Pickle pickle = parse(bytes);
  return to_json(PickledField{"x.pt", pickle.root()}).dump();
}

std::string refusal(const std::string& bytes) {
  return user_error([&] { json_of(bytes); });
}

template <size_t size>
std::string text(const char (&bytes)[size]) {
  return std::string(bytes, size - 1);
}

}  // namespace

TEST_CASE("Values that pickle protocols 2 and 4 write are read") {
  // pickle.dumps({"a": [1, -2, 300, 70000, 2**40, -2**40], "b": (1.5, None, True, False), "c": "\u00e9"}, 2)
  CHECK(json_of(text("\x80\x02}q\x00(X\x01\x00\x00\x00"
                     "aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01"
                     "\x8a\x06\x00\x00\x00\x00\x00\xff"
                     "eX\x01\x00\x00\x00"
                     "bq\x03(G?\xf8\x00\x00\x00\x00\x00\x00N\x88\x89tq\x04X\x01\x00\x00\x00"
                     "cq\x05X\x02\x00\x00\x00\xc3\xa9q\x06u.")) ==
        R"({"a":[1,-2,300,70000,1099511627776,-1099511627776],"b":[1.5,null,true,false],"c":"é"})");
  // pickle.dumps([{1, 2}, b"\x00\xff", 2**70], 4)
  CHECK(json_of(text("\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00]\x94(\x8f\x94(K\x01K\x02\x90"
                     "C\x02\x00\xff\x94\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x40"
                     "e.")) == R"([[1,2],"00ff","0x400000000000000000"])");
}

TEST_CASE("An ordered dictionary is read as a dictionary, and its attributes are kept") {
  const std::string bytes = text(
      "\x80\x02"
      "ccollections\nOrderedDict\nq\x00)Rq\x01X\x01\x00\x00\x00kq\x02K\x07s}X\x01\x00\x00\x00mK\x01sb.");
  const Pickle pickle = parse(bytes);
  CHECK(pickle.root().is(PickleKind::dict));
  CHECK(pickle.root().find("k")->integer() == 7);
  CHECK(pickle.root().state()->find("m")->integer() == 1);
}

TEST_CASE("Calls and classes are kept by name and never executed") {
  const TemporaryFolder folder;
  const std::string victim = (folder / "victim").string();
  // The pickle that pickle.dumps writes for an object whose __reduce__ returns os.system and "touch VICTIM".
  const std::string command = "touch " + victim;
  const std::string bytes = text(
                                "\x80\x02"
                                "cposix\nsystem\nq\x00X") +
                            std::string(1, static_cast<char>(command.size())) + text("\x00\x00\x00") +
                            command + text("q\x01\x85q\x02Rq\x03.");
  CHECK(json_of(bytes) == R"({"class":"posix.system","arguments":[")" + command + R"("]})");
  CHECK_FALSE(std::filesystem::exists(victim));
  CHECK(json_of(text("\x80\x02"
                     "cm\nC\n)\x81}X\x01\x00\x00\x00xK\x05sb.")) ==
        R"({"class":"m.C","arguments":[],"state":{"x":5}})");
}

TEST_CASE("A pickle that is cut off, or uses the stack wrongly, is an error with its place") {
  const std::string whole = text(
      "\x80\x02}q\x00(X\x01\x00\x00\x00"
      "aq\x01]q\x02(K\x01K\x02"
      "eX\x01\x00\x00\x00"
      "bq\x03K\x01K\x02\x86q\x04u.");
  CHECK(json_of(whole) == R"({"a":[1,2],"b":[1,2]})");
  for (size_t length = 0; length < whole.size(); ++length)
    CHECK_THAT(refusal(whole.substr(0, length)), Contains("x.pt: the pickle"));
  CHECK_THAT(refusal(text("\x80\x02R.")), Contains("empty stack"));
  CHECK_THAT(refusal(text("\x80\x02(K\x01(R.")), Contains("empty stack"));
  CHECK_THAT(refusal(text("\x80\x02t.")), Contains("no mark"));
  CHECK_THAT(refusal(text("\x80\x02h\x07.")), Contains("memo 7"));
  CHECK_THAT(refusal(text("\x80\x02K\x01K\x02.")), Contains("another stack than one value"));
  CHECK_THAT(refusal(text("\x80\x02K\x01K\x02"
                          "a.")),
             Contains("takes none"));
  CHECK_THAT(refusal(text("\x80\x02}(K\x01u.")), Contains("without a value"));
  CHECK_THAT(refusal(text("\x80\x02X\xff\xff\xff\xff")), Contains("beyond its end"));
  CHECK_THAT(refusal(text("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff")), Contains("beyond its end"));
  CHECK_THAT(refusal(text("\x80\x01N.")), Contains("protocol 1"));
  CHECK_THAT(refusal(text("\x80\x02\x82\x01.")), Contains("opcode 0x82"));  // EXT1 names a class by a number
  CHECK_THAT(refusal("I1\n."), Contains("opcode 0x49"));
}

TEST_CASE(
    "Values that contain themselves, or expand to too many values, are refused when they are traversed") {
  CHECK_THAT(refusal(text("\x80\x02]q\x00h\x00"
                          "a.")),
             Contains("contains itself"));
  std::string doubling =
      text("\x80\x02]q\x00");  // each tuple has the previous value twice: 2^60 values in all
  for (int level = 0; level < 60; ++level) doubling += text("h\x00h\x00\x86q\x00");
  CHECK_THAT(refusal(doubling + "."), Contains("another stack"));
  doubling = text("\x80\x02]q\x00");
  for (int level = 0; level < 60; ++level) doubling += text("0h\x00h\x00\x86q\x00");
  CHECK_THAT(refusal(doubling + "."), Contains("more than a million values"));
  const std::string deep = text("\x80\x02") + std::string(100'000, ']') + std::string(99'999, 'a') + ".";
  CHECK_THAT(refusal(deep), Contains("nested more than 100 deep"));
}

#ifndef __SANITIZE_ADDRESS__
TEST_CASE("A pickle of more values than any checkpoint has is refused") {
  std::string bytes = text("\x80\x04N");
  for (int repeat = 0; repeat < 10'000'001; ++repeat) bytes += ")0";
  CHECK_THAT(refusal(bytes + "."), Contains("more than 10 million values"));
}

TEST_CASE("A pickle of any contents takes no more memory than the stated factor") {
  constexpr size_t kRepeats = 300'000;
  const std::vector<std::pair<std::string, std::string>> shapes = {
      {"values on the stack", "N"},
      {"marks", "("},
      {"empty lists", "]"},
      {"empty dicts", "}"},
      {"empty sets", "\x8f"},
      {"nested tuples of one", "\x85"},
      {"empty tuples", ")"},
      {"small integers", text("K\x01")},
      {"memoized values", text("N\x94")},
      {"lists of one", "]Na"},
      {"dicts of one", "}NNs"},
      {"empty texts", text("\x8c\x00")},
      {"short texts", text("\x8c\x10") + "sixteen letters!"},
      {"globals", "ca\nb\n"},
      {"objects", "ca\nb\n)R"},
      {"persistent ids", "NQ"},
  };
  for (const auto& [name, part] : shapes) {
    INFO(name);
    std::string bytes = text("\x80\x04N");
    for (size_t repeat = 0; repeat < kRepeats; ++repeat) bytes += part;
    bytes += ".";
    const int64_t before = allocated;
    peak = before;
    CHECK_THAT(user_error([&] { parse(bytes); }),
               Contains("another stack than one value") || Contains("no error"));
    CHECK(peak - before <= kPickleMemoryFactor * static_cast<int64_t>(bytes.size()));
    CHECK(peak - before > static_cast<int64_t>(bytes.size()) / 100);  // allocations were really counted
  }
}
#endif

}  // namespace zerorun::testing
