// Tests the memory of one rank's arena: allocations do not overlap, adjacent freed ranges are merged, and
// memory is filled with zeros.
#include "comm/shared_memory/shared_arena.h"

#include <ATen/ops/count_nonzero.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

namespace zerorun {
namespace {

std::shared_ptr<SharedArena> make_arena(int64_t pages) {
  return std::make_shared<SharedArena>(
      SharedSegment::create("test", static_cast<size_t>(pages * kArenaPage)));
}

}  // namespace

TEST_CASE("shared arena: places are whole pages, do not overlap, and run out") {
  auto arena = make_arena(4);
  const auto first = arena->take(1);
  const auto second = arena->take(kArenaPage + 1);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(*first == 0);
  CHECK(*second == kArenaPage);
  CHECK_FALSE(arena->take(kArenaPage + 1));
  CHECK(arena->take(kArenaPage) == 3 * kArenaPage);
  CHECK_FALSE(arena->take(1));
}

TEST_CASE("shared arena: freed neighbours are merged, in whatever order they are freed") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    auto arena = make_arena(64);
    std::vector<std::pair<int64_t, int64_t>> places;
    while (const auto offset = arena->take(static_cast<int64_t>(random() % 5 + 1) * kArenaPage)) {
      places.emplace_back(*offset, 0);
      if (places.size() > 40) break;
    }
    std::ranges::sort(places);
    for (size_t i = 0; i + 1 < places.size(); ++i) places[i].second = places[i + 1].first - places[i].first;
    places.pop_back();  // the last place is not given back, since its length is not known here
    std::ranges::shuffle(places, random);
    int64_t end = 0;
    for (const auto& [offset, bytes] : places) {
      end = std::max(end, offset + bytes);
      arena->give_back(offset, bytes);
    }
    CHECK(arena->take(end) == 0);
  }
}

TEST_CASE("shared arena: freed memory is zero when it is allocated again") {
  auto arena = make_arena(8);
  for (int round = 0; round < 3; ++round) {
    auto tensor = arena->allocate(3 * kArenaPage, at::kByte);
    REQUIRE(tensor);
    CHECK(at::count_nonzero(*tensor).item<int64_t>() == 0);
    std::memset(tensor->mutable_data_ptr(), 0xff, tensor->nbytes());
  }
}

TEST_CASE("shared arena: a tensor outlives its arena's other owners") {
  auto arena = make_arena(8);
  auto tensor = arena->allocate(100, at::kFloat);
  arena.reset();
  REQUIRE(tensor);
  std::memset(tensor->mutable_data_ptr(), 1, tensor->nbytes());
  CHECK(at::count_nonzero(*tensor).item<int64_t>() == 100);
}

TEST_CASE("shared arena: offset_of() finds memory in the arena, and no other memory") {
  auto arena = make_arena(8);
  const auto hole = arena->take(kArenaPage);
  REQUIRE(hole);
  auto tensor = arena->allocate(2 * kArenaPage, at::kByte);
  REQUIRE(tensor);
  const char* data = static_cast<const char*>(tensor->const_data_ptr());
  CHECK(arena->offset_of(data, 1) == kArenaPage);
  CHECK(arena->offset_of(data + 17, 100) == kArenaPage + 17);
  CHECK(arena->at(kArenaPage + 17) == data + 17);
  CHECK_FALSE(arena->offset_of(data, 100 * kArenaPage));
  int elsewhere = 0;
  CHECK_FALSE(arena->offset_of(&elsewhere, sizeof elsewhere));
}

}  // namespace zerorun
