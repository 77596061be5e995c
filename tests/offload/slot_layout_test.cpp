// Tests the layout of a slice's state in its file against the rules for checkpoint files.
#include "offload/slot_layout.h"

#include <catch2/catch.hpp>

#include "checkpoint/checksums.h"
#include "checkpoint/file_system.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

constexpr int64_t kMiB = kChecksumBlock;

SliceContents adam(int64_t numel, int64_t parameters) {
  SliceContents contents{.label = "bucket 0",
                         .metadata = {{"bucket", "0"}, {"rank", "1"}},
                         .numel = numel,
                         .states = {{"master"}, {"exp_avg"}, {"exp_avg_sq"}},
                         .parts = {}};
  const int64_t each = numel / parameters / 16 * 16;
  for (int64_t i = 0; i < parameters; ++i)
    contents.parts.push_back({"layer." + std::to_string(i) + ".weight", i == 0 ? 7 : 0, i * each, each - 3});
  return contents;
}

}  // namespace

TEST_CASE("Chunks cover the slice, follow one another, and begin at blocks with a checksum") {
  const auto [numel, parameters, chunk] =
      GENERATE(table<int64_t, int64_t, int64_t>({{16, 1, kMiB},
                                                 {80'000, 3, kMiB},
                                                 {1'000'000, 5, kMiB},
                                                 {1'000'000, 5, 4 * kMiB},
                                                 {3'000'000, 9000, kMiB},  // header of several MB
                                                 {5'000'000, 2, 7 * kMiB}}));
  CAPTURE(numel, parameters, chunk);
  const SliceContents contents = adam(numel, parameters);
  const SlotLayout layout = make_slot_layout(contents, chunk, 16);
  int64_t element = 0, byte = 0;
  for (const Chunk& at : layout.chunks) {
    CHECK(at.begin == element);
    CHECK(at.offset == byte);
    CHECK(at.offset % kMiB == 0);
    CHECK(at.bytes % kPageBytes == 0);
    CHECK(at.numel % 16 == 0);
    int64_t end = at.begin == 0 ? static_cast<int64_t>(layout.header.size()) : 0;
    for (const int64_t offset : at.state_offsets) {
      CHECK(offset >= end);
      CHECK(offset % kTensorAlignment == 0);
      end = offset + 4 * at.numel;
    }
    CHECK(end <= at.bytes);
    element += at.numel;
    byte += at.bytes;
  }
  CHECK(element == numel);
  CHECK(byte == layout.bytes);
  CHECK(layout.header.substr(layout.generation_at, kGenerationDigits) == "000000000000");
  if (numel >= 1'000'000 && parameters < 10) CHECK(layout.bytes <= 1.005 * 12.0 * static_cast<double>(numel));
}

TEST_CASE("Ranges have every element of every part once, at its position in its chunk") {
  const SliceContents contents = adam(700'000, 7);
  const SlotLayout layout = make_slot_layout(contents, kMiB, 16);
  REQUIRE(layout.chunks.size() > 5);
  for (size_t state = 0; state < contents.states.size(); ++state) {
    for (const SlicePart& part : contents.parts) {
      int64_t next = part.begin;
      for (const StateRange& range : layout.ranges) {
        if (range.parameter != part.parameter || range.state != contents.states[state].name) continue;
        CHECK(range.begin == next);
        next += range.numel;
        const int64_t in_slice = range.begin - part.begin + part.begin_in_slice;
        for (const Chunk& chunk : layout.chunks) {
          if (in_slice < chunk.begin || in_slice >= chunk.begin + chunk.numel) continue;
          CHECK(range.offset == chunk.offset + chunk.state_offsets[state] + 4 * (in_slice - chunk.begin));
        }
      }
      CHECK(next == part.begin + part.numel);
    }
  }
}

}  // namespace zerorun::testing
