// Tests memory that all ranks write to: blocks are shared, and their pages are freed after the last user.
#include "comm/shared_memory/shared_blocks.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kNumel = 64 * kArenaPage;  // elements of 1 byte

// Two ranks' mappings of one segment, and the number of pages that the segment uses.
struct Pair {
  Pair() {
    SharedSegment segment = SharedSegment::create("test", static_cast<size_t>(kRanks * 300 * kArenaPage));
    SharedSegment again = SharedSegment::open(getpid(), segment.descriptor(), segment.bytes(), true);
    descriptor = segment.descriptor();
    first = std::make_shared<SharedBlocks>(std::move(segment), 0, kRanks);
    second = std::make_shared<SharedBlocks>(std::move(again), 1, kRanks);
  }
  int64_t pages() const {
    struct stat facts {};
    REQUIRE(fstat(descriptor, &facts) == 0);
    return facts.st_blocks * 512 / kArenaPage;
  }

  int descriptor = -1;
  std::shared_ptr<SharedBlocks> first;
  std::shared_ptr<SharedBlocks> second;
};

uint8_t at_index(const at::Tensor& tensor, int64_t index) {
  return tensor.const_data_ptr<uint8_t>()[index];
}

}  // namespace

TEST_CASE("shared blocks: each rank sees the other's writes; the last user frees the pages") {
  Pair pair;
  const auto offset = pair.first->reserve(kNumel, 2);
  REQUIRE(offset);
  at::Tensor mine = pair.first->open(*offset, kNumel, at::kByte, 1);
  at::Tensor theirs = pair.second->open(*offset, kNumel, at::kByte, 1);
  CHECK(pair.first->contains(mine.const_data_ptr(), mine.nbytes(), 1));
  CHECK_FALSE(pair.first->contains(theirs.const_data_ptr(), theirs.nbytes(), 1));
  mine.mutable_data_ptr<uint8_t>()[5] = 1;
  theirs.mutable_data_ptr<uint8_t>()[kNumel - 1] = 2;
  CHECK(at_index(theirs, 5) == 1);
  CHECK(at_index(mine, kNumel - 1) == 2);
  mine.fill_(3);
  CHECK(pair.pages() >= 64);
  mine.reset();
  CHECK(pair.pages() >= 64);
  CHECK(at_index(theirs, 100) == 3);
  theirs.reset();
  CHECK(pair.pages() < 4);
}

TEST_CASE("shared blocks: each rank reserves in a part of its own") {
  Pair pair;
  const auto mine = pair.first->reserve(kNumel, 1);
  const auto theirs = pair.second->reserve(kNumel, 1);
  REQUIRE(mine);
  REQUIRE(theirs);
  CHECK(*mine == 0);
  CHECK(*theirs == 300 * kArenaPage);
  const at::Tensor whole = pair.second->open(*theirs, kNumel, at::kByte, 1);
  CHECK_FALSE(pair.second->reserve(299 * kArenaPage, 1));
}

TEST_CASE("shared blocks: a place is reserved again only after all ranks have released it") {
  Pair pair;
  const auto first = pair.first->reserve(kNumel, 2);
  at::Tensor mine = pair.first->open(*first, kNumel, at::kByte, 1);
  at::Tensor theirs = pair.second->open(*first, kNumel, at::kByte, 1);
  mine.reset();
  const auto second = pair.first->reserve(kNumel, 1);
  CHECK(second != first);
  theirs.reset();
  CHECK(pair.first->reserve(kNumel, 1) == first);
  CHECK_FALSE(pair.first->reserve(300 * kArenaPage, 1));
}

TEST_CASE("shared blocks: after make_own() only the pages that are written to are private") {
  Pair pair;
  const auto offset = pair.first->reserve(kNumel, 2);
  at::Tensor mine = pair.first->open(*offset, kNumel, at::kByte, 1);
  at::Tensor theirs = pair.second->open(*offset, kNumel, at::kByte, 1);
  theirs.fill_(9);
  const int64_t before = pair.pages();
  pair.first->make_own(mine);
  mine.mutable_data_ptr<uint8_t>()[kArenaPage] = 1;
  CHECK(at_index(theirs, kArenaPage) == 9);
  CHECK(at_index(mine, 0) == 9);
  CHECK(at_index(mine, kArenaPage + 1) == 9);
  CHECK(pair.pages() == before);
  mine.reset();
  theirs.reset();
  // After make_own(), the block can be reserved and opened again. Then it is shared again.
  const auto again = pair.first->reserve(kNumel, 2);
  REQUIRE(again == offset);
  mine = pair.first->open(*again, kNumel, at::kByte, 1);
  theirs = pair.second->open(*again, kNumel, at::kByte, 1);
  CHECK(at_index(mine, kArenaPage) == 0);
  theirs.mutable_data_ptr<uint8_t>()[kArenaPage] = 4;
  CHECK(at_index(mine, kArenaPage) == 4);
}

TEST_CASE("shared blocks: if there is no memory for make_own(), the block stays shared") {
  Pair pair;
  const auto offset = pair.first->reserve(kNumel, 2);
  at::Tensor mine = pair.first->open(*offset, kNumel, at::kByte, 1);
  at::Tensor theirs = pair.second->open(*offset, kNumel, at::kByte, 1);
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_DATA, &limit) == 0);
  const rlimit none{.rlim_cur = 4096, .rlim_max = limit.rlim_max};
  REQUIRE(setrlimit(RLIMIT_DATA, &none) == 0);
  bool refused = false;
  try {
    pair.first->make_own(mine);
  } catch (const Error&) {
    refused = true;
  }
  REQUIRE(setrlimit(RLIMIT_DATA, &limit) == 0);
  CHECK(refused);
  CHECK(pair.first->contains(mine.const_data_ptr(), mine.nbytes(), 1));
  theirs.fill_(5);
  CHECK(at_index(mine, kArenaPage) == 5);
}

TEST_CASE("shared blocks: pages that lie wholly in a part go back to the system, and read as zeros for all") {
  Pair pair;
  const auto offset = pair.first->reserve(kNumel, 2);
  const at::Tensor mine = pair.first->open(*offset, kNumel, at::kByte, 1);
  const at::Tensor theirs = pair.second->open(*offset, kNumel, at::kByte, 1);
  mine.fill_(9);
  const int64_t before = pair.pages();
  pair.second->give_back_pages(theirs.narrow(0, 10 * kArenaPage - 1, 20 * kArenaPage + 2));
  CHECK(pair.pages() == before - 20);
  CHECK(at_index(mine, 10 * kArenaPage - 1) == 9);
  CHECK(at_index(mine, 10 * kArenaPage) == 0);
  CHECK(at_index(mine, 30 * kArenaPage - 1) == 0);
  CHECK(at_index(mine, 30 * kArenaPage) == 9);
  const int64_t after = pair.pages();  // the two reads of zeros above have allocated two pages again
  pair.second->give_back_pages(theirs.narrow(0, 40 * kArenaPage + 1, 2 * kArenaPage - 2));  // no whole page
  pair.second->give_back_pages(theirs.narrow(0, 50 * kArenaPage, 0));
  CHECK(pair.pages() == after);
  theirs.mutable_data_ptr<uint8_t>()[20 * kArenaPage] = 4;
  CHECK(at_index(mine, 20 * kArenaPage) == 4);
}

TEST_CASE("shared blocks: make_own() accepts an empty tensor") {
  Pair pair;
  const auto offset = pair.first->reserve(0, 1);
  at::Tensor nothing = pair.first->open(*offset, 0, at::kFloat, 1);
  CHECK_NOTHROW(pair.first->make_own(nothing));
}

}  // namespace zerorun
