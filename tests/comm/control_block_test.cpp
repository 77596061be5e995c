// Tests that a control block accepts only processes of its own job, and one process per rank.
#include "comm/shared_memory/control_block.h"

#include <unistd.h>

#include <catch2/catch.hpp>

#include "base/error.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;

constexpr int kRanks = 3;

// Maps the segment a second time, as another process does.
SharedSegment mapped_again(const SharedSegment& segment) {
  return SharedSegment::open(getpid(), segment.descriptor(), segment.bytes(), true);
}

}  // namespace

TEST_CASE("control block: the block of another job is refused") {
  const SharedSegment made = ControlBlock::make(kRanks, 7);
  CHECK_THROWS_WITH(ControlBlock(mapped_again(made), 1, kRanks, 8), Contains("belongs to another job"));
  const SharedSegment unmarked = SharedSegment::create("test", ControlBlock::bytes(kRanks));
  CHECK_THROWS_WITH(ControlBlock(mapped_again(unmarked), 1, kRanks, 8), Contains("belongs to another job"));
  CHECK_NOTHROW(ControlBlock(mapped_again(made), 1, kRanks, 7));
}

TEST_CASE("control block: a second process of a rank is refused, and does not disturb the first one") {
  const SharedSegment made = ControlBlock::make(kRanks, 7);
  ControlBlock first(mapped_again(made), 1, kRanks, 7);
  const Numbered barrier{.kind = Collective::barrier, .number = 0};
  first.post(barrier, {.numel = 5}, "label", "");
  CHECK_THROWS_WITH(ControlBlock(mapped_again(made), 1, kRanks, 7), Contains("another process is rank 1"));
  ControlBlock other(mapped_again(made), 2, kRanks, 7);
  CHECK(other.has_posted(1, barrier));
  CHECK(other.posting(1, barrier).numel == 5);
  CHECK_FALSE(other.has_posted(0, barrier));
  CHECK_FALSE(other.has_posted(2, barrier));
}

}  // namespace zerorun
