// Tests the reader and the writer of safetensors. Files of other writers are read, written files follow the
// format, and files with a wrong header are refused.
#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors_reader.h"
#include "tests/support/safetensors_files.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

std::string file_bytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

// Returns the reader's error message for a file with this header and this data, or "no error".
std::string message_for(const std::string& header, const std::string& data) {
  const TemporaryFolder folder;
  const auto file = folder.write("x.safetensors", file_bytes(header, data));
  return user_error([&] { SafetensorsReader{file}; });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, uint64_t begin,
                  uint64_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

TEST_CASE("a file of another writer is read by name") {
  SafetensorsReader reader(ZERORUN_SOURCE_DIR "/tests/golden/data/init_tiny_seed1234.safetensors");
  CHECK(reader.tensors().size() == 28);
  const TensorInfo& info = reader.tensors().at("transformer.h.0.attn.c_attn.weight");
  CHECK(to_string(info) == "F32 [64, 192]");
  CHECK(reader.read("transformer.h.0.attn.c_attn.weight").size() == 64 * 192 * 4);
  const std::vector<std::byte> ones = reader.read("transformer.ln_f.weight");
  for (size_t i = 0; i < 64; ++i) {
    float value;
    std::memcpy(&value, ones.data() + 4 * i, 4);
    CHECK(value == 1.0f);
  }
}

TEST_CASE("written tensors are read back") {
  const TemporaryFolder folder;
  const std::string floats = "0123456789abcdefghijklmn", halves = "xyz!";
  const std::map<std::string, TensorToWrite> tensors = {
      {"w", {"F32", {2, 3}, std::as_bytes(std::span(floats))}},
      {"a/\"quoted\"", {"BF16", {2}, std::as_bytes(std::span(halves))}},
      {"empty", {"F32", {0, 7}, {}}},
      {"scalar", {"F32", {}, std::as_bytes(std::span(halves))}}};
  write_safetensors(folder / "x.safetensors", tensors);
  SafetensorsReader reader(folder / "x.safetensors");
  REQUIRE(reader.tensors().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CHECK(reader.tensors().at(name).dtype == tensor.dtype);
    CHECK(reader.tensors().at(name).shape == tensor.shape);
    const std::vector<std::byte> bytes = reader.read(name);
    CHECK(std::equal(bytes.begin(), bytes.end(), tensor.bytes.begin(), tensor.bytes.end()));
  }
}

TEST_CASE("the written bytes follow the format") {
  const TemporaryFolder folder;
  const std::string first = "AAAABBBB", second = "CCCC";
  write_safetensors(folder / "x.safetensors", {{"b", {"F32", {1}, std::as_bytes(std::span(second))}},
                                               {"a", {"F32", {2, 1}, std::as_bytes(std::span(first))}}});
  const std::string bytes = read_file(folder / "x.safetensors");
  uint64_t length;
  std::memcpy(&length, bytes.data(), sizeof(length));
  CHECK(length % 8 == 0);
  CHECK(bytes[8] == '{');
  CHECK(bytes.substr(8 + length) == "AAAABBBBCCCC");
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  CHECK(header["a"] == nlohmann::json::parse(R"({"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]})"));
  CHECK(header["b"] == nlohmann::json::parse(R"({"dtype": "F32", "shape": [1], "data_offsets": [8, 12]})"));
  CHECK(header["__metadata__"]["format"] == "pt");
}

TEST_CASE("a tensor with the name of the metadata is refused before anything is written") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name) {
    return user_error([&] { write_safetensors(folder / "out/x.safetensors", {{name, {"F32", {0}, {}}}}); });
  };
  CHECK_THAT(write("__metadata__"), Contains("out: a tensor is named __metadata__"));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  CHECK(write("__metadata__.weight") == "no error");
}

TEST_CASE("a failed write leaves the old file and nothing else") {
  const TemporaryFolder folder;
  const std::string data = "AAAA";
  const std::map<std::string, TensorToWrite> tensors = {{"a", {"F32", {1}, std::as_bytes(std::span(data))}}};
  std::filesystem::create_directories(folder / "taken.safetensors");
  folder.write("taken.safetensors/file", "old");
  // The write fails at its last step, because a file cannot be renamed to the name of an existing folder.
  CHECK_THAT(user_error([&] { write_safetensors(folder / "taken.safetensors", tensors); }),
             Contains("cannot be written"));
  CHECK_THAT(user_error([&] {
               write_safetensors(folder / "taken.safetensors" / "file" / "x.safetensors", tensors);
             }),
             Contains("x.safetensors"));
  CHECK(read_file(folder / "taken.safetensors/file") == "old");
  const std::filesystem::directory_iterator entries((folder / "taken.safetensors").parent_path());
  CHECK(std::distance(begin(entries), end(entries)) == 1);
}

TEST_CASE("only files of the writer itself, and the file that it writes, are replaced") {
  const TemporaryFolder folder;
  const std::string data = "AAAABBBB";
  const auto write = [&](int64_t max_shard_bytes) {
    return user_error([&] {
      SafetensorsFolder shards(checkpoint::local_file_system(), folder / "m",
                               {{"a", "F32", {1}}, {"b", "F32", {1}}}, max_shard_bytes, "x");
      shards.write(std::as_bytes(std::span(data)));
      shards.finish();
    });
  };
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "m"))
      found.insert(entry.path().filename());
    return found;
  };
  const std::set<std::string> whole = {"x.safetensors"};
  const std::set<std::string> shards = {"x-00001-of-00002.safetensors", "x-00002-of-00002.safetensors",
                                        "x.safetensors.index.json"};
  for (const int64_t bytes : {8, 4, 8, 4}) {
    CHECK(write(bytes) == "no error");
    CHECK(names() == (bytes == 8 ? whole : shards));
  }
  CHECK(nlohmann::json::parse(read_file(folder / "m/x.safetensors.index.json"))["metadata"]["total_size"] ==
        8);
  CHECK(write(8) == "no error");
  folder.write("m/x.safetensors", "other");
  CHECK(write(8) == "no error");
  for (const std::string name : {"x-00001-of-00009.safetensors", "x.safetensors.index.json"}) {
    folder.write("m/" + name, "other");
    CHECK_THAT(write(8), Contains("m/" + name + ": readers would mix this file of another program"));
    CHECK(names() == std::set<std::string>{"x.safetensors", name});
    std::filesystem::remove(folder / "m" / name);
  }
  folder.write("m/x-00001-of-00002.safetensors", "other");
  folder.write("m/x.safetensors.index.json", "other");
  std::filesystem::remove(folder / "m/x.safetensors");
  CHECK(write(4) == "no error");  // these names are its own
  CHECK(SafetensorsReader(folder / "m/x-00001-of-00002.safetensors").tensors().size() == 1);
}

TEST_CASE("a folder of shards is read by its index, which must be right") {
  const TemporaryFolder folder;
  const std::string first = "AAAABBBB", second = "CCCC";
  write_safetensors(folder / "m/one.safetensors", {{"a", {"F32", {2}, std::as_bytes(std::span(first))}}});
  write_safetensors(folder / "m/two.safetensors", {{"b", {"F32", {1}, std::as_bytes(std::span(second))}}});
  auto index = [&](const std::string& map) {
    folder.write("m/model.safetensors.index.json", "{\"metadata\":{},\"weight_map\":" + map + "}");
    return user_error([&] { SafetensorsReader{folder / "m"}; });
  };
  CHECK(index(R"({"a":"one.safetensors","b":"two.safetensors"})") == "no error");
  const SafetensorsReader reader(folder / "m");
  CHECK(reader.tensors().size() == 2);
  CHECK(reader.file_of(reader.tensors().at("b")).filename() == "two.safetensors");
  std::string part(4, ' ');
  reader.read(reader.tensors().at("a"), 4, std::as_writable_bytes(std::span(part)));
  CHECK(part == "BBBB");
  CHECK_THAT(index(R"({"a":"two.safetensors","b":"two.safetensors"})"),
             Contains("tensor 'a' is not in two.safetensors"));
  CHECK_THAT(index(R"({"a":"one.safetensors","c":"two.safetensors"})"), Contains("tensor 'c' is not in"));
  CHECK_THAT(index(R"({"a":"three.safetensors"})"), Contains("three.safetensors: no such file"));
  CHECK_THAT(index(R"({"a":"../m/one.safetensors"})"),
             Contains("expected the name of a file in this folder"));
  CHECK_THAT(index(R"({"a":3})"), Contains("expected the name of a file in this folder"));
  CHECK_THAT(index("3"), Contains("expected a \"weight_map\""));
  CHECK_THAT(index("{"), Contains("not valid JSON"));
  write_safetensors(folder / "m/two.safetensors", {{"a", {"F32", {1}, std::as_bytes(std::span(second))}}});
  CHECK_THAT(index(R"({"a":"one.safetensors","b":"two.safetensors"})"),
             Contains("tensor 'a' is in") && Contains("too"));
}

TEST_CASE("errors about files that are not safetensors name the path") {
  const TemporaryFolder folder;
  CHECK_THAT(user_error([&] { SafetensorsReader{folder / "absent"}; }), Contains("absent: no such file"));
  CHECK_THAT(user_error([&] { SafetensorsReader{folder / ""}; }),
             Contains("a folder with model.safetensors or"));
  CHECK_THAT(user_error([&] { SafetensorsReader{folder.write("empty", "")}; }), Contains("it has 0 bytes"));
  CHECK_THAT(user_error([&] { SafetensorsReader{folder.write("text", "plain text, no tensors")}; }),
             Contains("announce a header of"));
}

TEST_CASE("absurd header lengths are refused before any memory is taken") {
  const TemporaryFolder folder;
  for (const uint64_t length : {uint64_t{17}, uint64_t{100'000'001}, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
    const auto file = folder.write("x", bytes + "{}              ");
    CHECK_THAT(user_error([&] { SafetensorsReader{file}; }), Contains("announce a header of"));
  }
}

TEST_CASE("malformed headers say what is wrong") {
  const std::string data(16, 'x');
  const std::string good = entry("a", "F32", "[4]", 0, 16);
  REQUIRE(message_for("{" + good + "}", data) == "no error");
  REQUIRE(message_for("{\"__metadata__\":{\"k\":\"v\"}," + good + "}   ", data) == "no error");
  REQUIRE(message_for("{}", "") == "no error");

  CHECK_THAT(message_for("{" + good, data), Contains("not valid JSON"));
  CHECK_THAT(message_for("[]", ""), Contains("not a JSON object"));
  CHECK_THAT(message_for("{" + good + "," + good + "}", data), Contains("tensor 'a' appears twice"));
  CHECK_THAT(message_for("{\"a\":3}", data), Contains("tensor 'a': expected dtype, shape"));
  CHECK_THAT(message_for("{" + entry("a", "F32", "[-4]", 0, 16) + "}", data), Contains("expected dtype"));
  CHECK_THAT(message_for("{" + entry("a", "F32", "[4.0]", 0, 16) + "}", data), Contains("expected dtype"));
  CHECK_THAT(message_for("{" + entry("a", "F13", "[4]", 0, 16) + "}", data), Contains("unknown dtype 'F13'"));
  CHECK_THAT(message_for("{" + entry("a", "F32", "[3]", 0, 16) + "}", data),
             Contains("F32 [3] takes 12 bytes") && Contains("[0, 16]"));
  CHECK_THAT(message_for("{" + entry("a", "F32", "[4]", 16, 0) + "}", data), Contains("data_offsets"));
  CHECK_THAT(message_for("{" + entry("a", "U8", "[4294967296,4294967296,16]", 0, 0) + "}", ""),
             Contains("more than 2^64"));
}

// A reader whose run time is quadratic would take minutes in this test.
TEST_CASE("a header of very many tensors is read, and one of very many brackets refused") {
  std::string header = "{";
  constexpr size_t kTensors = 300'000;
  for (size_t index = 0; index < kTensors; ++index)
    header += (index > 0 ? "," : "") + entry("t" + std::to_string(index), "U8", "[1]", index, index + 1);
  CHECK(message_for(header + "}", std::string(kTensors, 'x')) == "no error");
  CHECK_THAT(message_for("{\"a\":" + std::string(10'000'000, '['), ""), Contains("expected dtype, shape"));
  CHECK_THAT(message_for("{\"__metadata__\":" + std::string(1'000'000, '[') + "}", ""),
             Contains("expected dtype") || Contains("not valid JSON"));
}

TEST_CASE("tensors must cover every byte of the data exactly once") {
  const std::string data(16, 'x');
  CHECK_THAT(message_for("{" + entry("a", "F32", "[4]", 0, 16) + "}", data.substr(1)),
             Contains("cut off") && Contains("'a' ends at byte 16") && Contains("holds 15"));
  CHECK_THAT(message_for("{" + entry("a", "F32", "[4]", 0, 16) + "}", data + "y"),
             Contains("1 bytes at the end"));
  CHECK_THAT(
      message_for("{" + entry("a", "F32", "[3]", 0, 12) + "," + entry("b", "F32", "[2]", 8, 16) + "}", data),
      Contains("'b' starts at byte 8") && Contains("inside the tensor before it"));
  CHECK_THAT(
      message_for("{" + entry("a", "F32", "[1]", 0, 4) + "," + entry("b", "F32", "[2]", 8, 16) + "}", data),
      Contains("'b' starts at byte 8") && Contains("after a hole: expected 4"));
}

TEST_CASE("any truncation of a good file is an error") {
  const TemporaryFolder folder;
  const std::string whole =
      file_bytes("{" + entry("a", "F32", "[3]", 0, 12) + "," + entry("b", "U8", "[2]", 12, 14) + "}",
                 std::string(14, 'x'));
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto file = folder.write("x", whole.substr(0, size));
    CHECK(user_error([&] { SafetensorsReader{file}; }) != "no error");
  }
  CHECK(user_error([&] { SafetensorsReader{folder.write("x", whole)}; }) == "no error");
}

}  // namespace
}  // namespace zerorun::testing
