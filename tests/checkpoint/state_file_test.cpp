// Tests files of slices: the plain safetensors reader can read them, any range of elements can be read, and
// damage is detected.
#include "checkpoint/state_file.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/hexadecimal.h"
#include "checkpoint/checksums.h"
#include "checkpoint/safetensors_reader.h"
#include "checkpoint/saved_state.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

using Catch::Matchers::Contains;

std::vector<float> numbers(int64_t first, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), static_cast<float>(first));
  return values;
}

RangeToWrite range(const std::string& parameter, const std::string& state, int64_t begin,
                   const std::vector<float>& values) {
  return {{.parameter = parameter,
           .state = state,
           .dtype = "F32",
           .begin = begin,
           .numel = static_cast<int64_t>(values.size())},
          std::make_shared<MemorySnapshot>(std::as_bytes(std::span(values)))};
}

std::vector<float> read(StateFileReader& reader, const StateRange& range, int64_t begin, int64_t numel) {
  std::vector<float> values(static_cast<size_t>(numel));
  reader.read(range, begin, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace

TEST_CASE("The plain safetensors reader can read a file of slices, whose data are aligned for direct I/O") {
  const TemporaryFolder folder;
  const auto a = numbers(100, 7);
  const auto b = numbers(0, 300'000);  // 1.2 MB, longer than the block of 1 MiB that a checksum covers
  const auto file = folder / "x.safetensors";
  const StateFileFacts facts =
      write_state_file(local_file_system(), folder / "",
                       {"x.safetensors",
                        {{"bucket", "3"}, {"rank", "1"}},
                        {range("h.0.weight", "value", 5, a), range("h.1.weight", "exp_avg", 0, b)}});
  SafetensorsReader other(file);
  CHECK(other.tensors().size() == 4);
  CHECK(other.tensors().at("padding.0").dtype == "U8");
  CHECK(to_string(other.tensors().at("h.0.weight:value@5")) == "F32 [7]");
  const std::vector<std::byte> bytes = other.read("h.1.weight:exp_avg@0");
  REQUIRE(bytes.size() == b.size() * sizeof(float));
  CHECK(std::memcmp(bytes.data(), b.data(), bytes.size()) == 0);

  const std::string text = read_file(file);
  CHECK(static_cast<int64_t>(text.size()) == facts.bytes);
  CHECK(facts.bytes % 4096 == 0);
  CHECK(facts.ranges[0].offset % 4096 == 0);
  CHECK(facts.ranges[1].offset % 64 == 0);
  CHECK(std::memcmp(text.data() + facts.ranges[0].offset, a.data(), a.size() * sizeof(float)) == 0);
  CHECK(facts.checksums.size() == 2);
  CHECK(text.find("\"rank\":\"1\"") != std::string::npos);
}

TEST_CASE("Any part of a range can be read, and each block only once if it is read from front to back") {
  const TemporaryFolder folder;
  const auto values = numbers(0, 1'000'000);
  const auto file = folder / "x.safetensors";
  const StateFileFacts facts = write_state_file(local_file_system(), folder / "",
                                                {"x.safetensors", {}, {range("w", "value", 10, values)}});
  StateFileReader reader(local_file_system(), file, facts);
  for (const auto& [begin, numel] :
       {std::pair<int64_t, int64_t>(10, 1), {11, 999'999}, {262'000, 400}, {1'000'009, 1}, {10, 0}}) {
    CAPTURE(begin, numel);
    CHECK(read(reader, facts.ranges[0], begin, numel) == numbers(begin - 10, numel));
  }
  StateFileReader again(local_file_system(), file, facts);
  for (int64_t begin = 10; begin < 1'000'010; begin += 1000) read(again, facts.ranges[0], begin, 1000);
  CHECK(again.bytes_read() == facts.bytes);
}

TEST_CASE("Damage is found: a bit, a file cut off, a file that is missing") {
  const TemporaryFolder folder;
  const auto values = numbers(0, 600'000);
  const auto file = folder / "x.safetensors";
  const StateFileFacts facts = write_state_file(local_file_system(), folder / "",
                                                {"x.safetensors", {}, {range("w", "value", 0, values)}});
  const std::string whole = read_file(file);
  for (const size_t at : {size_t{5000}, size_t{1'100'000}, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 64);
    folder.write("x.safetensors", damaged);
    StateFileReader reader(local_file_system(), file, facts);
    const std::string error = user_error([&] { read(reader, facts.ranges[0], 0, 600'000); });
    CHECK_THAT(error, Contains("x.safetensors") && Contains("another checksum"));
  }
  folder.write("x.safetensors", whole.substr(0, whole.size() - 1));
  CHECK_THAT(user_error([&] {
               StateFileReader{local_file_system(), file, facts};
             }),
             Contains("the manifest says"));
  CHECK_THAT(user_error([&] {
               StateFileReader{local_file_system(), folder / "y", facts};
             }),
             Contains("cannot be opened: No such file"));
}

TEST_CASE("Checksums are XXH3 hashes, written as 16 hexadecimal digits") {
  const std::string text = "zerorun";
  const uint64_t checksum = checksum_of(std::as_bytes(std::span(text)));
  CHECK(checksum_of({}) == 0x2d06800538d394c2);  // XXH3 of empty input, as published
  CHECK(from_hexadecimal(in_hexadecimal(checksum)) == checksum);
  CHECK(in_hexadecimal(0xab) == "00000000000000ab");
  CHECK_THAT(user_error([] { from_hexadecimal("12"); }), Contains("16 hexadecimal digits"));
  CHECK_THAT(user_error([] { from_hexadecimal("00000000000000xy"); }), Contains("16 hexadecimal digits"));
}

TEST_CASE("A range of a parameter is read from all files that hold a part of it") {
  const TemporaryFolder folder;
  Manifest manifest{.tag = "t",
                    .precision = "fp32",
                    .optimizer = "SGD",
                    .parameters = {{"w", {{1000}, {1}, true}}},
                    .files = {},
                    .numbers = {{}}};
  const auto whole = numbers(0, 1000);
  int64_t begin = 0;
  for (const int64_t numel : {300, 1, 0, 699}) {
    const std::vector<float> part(whole.begin() + begin, whole.begin() + begin + numel);
    const std::string name = std::to_string(begin) + "-" + std::to_string(numel);
    manifest.files[name] =
        write_state_file(local_file_system(), folder / "", {name, {}, {range("w", "value", begin, part)}});
    begin += numel;
  }
  folder.write("manifest.json", to_json(manifest));
  SavedState saved(local_file_system(), folder / "");
  for (int64_t from = 0; from < 1000; from += 37) {
    for (const int64_t numel : {int64_t{0}, int64_t{1}, int64_t{350}, 1000 - from}) {
      if (from + numel > 1000) continue;
      std::vector<float> values(static_cast<size_t>(numel));
      saved.read("w", "value", from, numel, std::as_writable_bytes(std::span(values)));
      CHECK(values == numbers(from, numel));
    }
  }
  std::vector<float> values(2);
  const auto into = std::as_writable_bytes(std::span(values));
  CHECK_THAT(user_error([&] { saved.read("w", "value", 999, 2, into); }),
             Contains("element 1000 is in no file"));
  CHECK_THAT(user_error([&] { saved.read("w", "master", 0, 2, into); }), Contains("master of w is not in"));
}

}  // namespace zerorun::testing
