// Tests that the board of a host's ranks accepts only processes of its own job, and one process per rank; and
// that a group's control block rings its own ranks.
#include "comm/shared_memory/control_block.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "base/error.h"
#include "comm/shared_memory/shared_segment.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;

constexpr int kRanks = 3;

SharedSegment make(uint64_t job) {
  SharedSegment segment =
      SharedSegment::create("test", RankBoard::bytes(kRanks) + ControlBlock::bytes(kRanks));
  RankBoard::prepare(segment.data(), job);
  return segment;
}

// A rank with a mapping of its own, as another process has.
struct RankOfTest {
  RankOfTest(const SharedSegment& made, int rank, uint64_t job, std::vector<int> ranks = {0, 1, 2})
      : segment(SharedSegment::open(getpid(), made.descriptor(), made.bytes(), true)),
        board(segment.data(), rank, kRanks, job),
        block(segment.data() + RankBoard::bytes(kRanks),
              static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin()), ranks, board) {}

  SharedSegment segment;
  RankBoard board;
  ControlBlock block;
};

}  // namespace

TEST_CASE("rank board: the board of another job is refused") {
  const SharedSegment made = make(7);
  CHECK_THROWS_WITH(RankOfTest(made, 1, 8), Contains("belongs to another job"));
  const SharedSegment unmarked = SharedSegment::create("test", made.bytes());
  CHECK_THROWS_WITH(RankOfTest(unmarked, 1, 8), Contains("belongs to another job"));
  CHECK_NOTHROW(RankOfTest(made, 1, 7));
}

TEST_CASE("rank board: a second process of a rank is refused, and does not disturb the first one") {
  const SharedSegment made = make(7);
  RankOfTest first(made, 1, 7);
  const Numbered barrier{.kind = Collective::barrier, .number = 0};
  first.block.post(barrier, {.numel = 5}, "label", "");
  CHECK_THROWS_WITH(RankOfTest(made, 1, 7), Contains("another process is rank 1"));
  RankOfTest other(made, 2, 7);
  CHECK(other.block.has_posted(1, barrier));
  CHECK(other.block.posting(1, barrier).numel == 5);
  CHECK_FALSE(other.block.has_posted(0, barrier));
  CHECK_FALSE(other.block.has_posted(2, barrier));
}

TEST_CASE("control block: the last rank to post rings the bells of its group, and no others") {
  const SharedSegment made = make(7);
  RankOfTest outside(made, 1, 7);
  RankOfTest first(made, 0, 7, {0, 2});
  RankOfTest last(made, 2, 7, {0, 2});
  const Numbered barrier{.kind = Collective::barrier, .number = 0};
  first.block.post(barrier, {}, "label", "");
  CHECK(first.board.bell() == 0);
  last.block.post(barrier, {}, "label", "");
  CHECK(first.board.bell() == 1);
  CHECK(last.board.bell() == 1);
  CHECK(outside.board.bell() == 0);
}

TEST_CASE("rank board: others see what a rank waits for, and its first failure") {
  const SharedSegment made = make(7);
  RankOfTest mine(made, 0, 7);
  const RankOfTest theirs(made, 1, 7);
  CHECK_FALSE(theirs.board.waiting(0));
  mine.board.say_waiting({.group = 9, .which = {Collective::all_gather, 4}}, "bucket 3", "for aten::mm");
  REQUIRE(theirs.board.waiting(0));
  CHECK(theirs.board.waiting(0)->group == 9);
  CHECK(theirs.board.waiting(0)->which == Numbered{Collective::all_gather, 4});
  CHECK(theirs.board.words_of_wait(0) == "all_gather of bucket 3 for aten::mm");
  mine.board.say_failed("the cause");
  mine.board.say_failed("a consequence");
  CHECK(theirs.board.has_failed(0));
  CHECK(theirs.board.failure(0) == "the cause");
  CHECK_FALSE(theirs.board.has_failed(1));
  mine.board.say_waits_no_more();
  CHECK_FALSE(theirs.board.waiting(0));
}

}  // namespace zerorun
