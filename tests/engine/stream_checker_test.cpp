// Tests the StreamChecker, which the tests of streams rely on: it must report each use that is out of order,
// and no other use.
#include "tests/support/stream_checker.h"

#include <array>
#include <catch2/catch.hpp>

namespace zerorun::testing {
namespace {

constexpr StreamId kA = 1;
constexpr StreamId kB = 2;

struct Fixture {
  std::array<char, 64> memory{};
  StreamChecker checker;

  Fixture() { checker.add_memory(memory.data(), memory.size(), kA); }
  void use(StreamId stream, bool writes, size_t begin = 0, size_t bytes = 64) {
    checker.use(memory.data() + begin, bytes, stream, writes, writes ? "w" : "r");
  }
  void hand_over(StreamId from, StreamId to) { checker.wait(checker.now(from), to); }
};

}  // namespace

TEST_CASE("stream checker: uses on one stream are in order") {
  Fixture test;
  test.use(kA, true);
  test.use(kA, false);
  test.use(kA, true);
  CHECK(test.checker.violations().empty());
}

TEST_CASE("stream checker: a use on another stream needs a wait for a later event") {
  Fixture test;
  test.use(kA, true);
  SECTION("without one") {
    test.use(kB, false);
    CHECK(test.checker.violations().size() == 1);
  }
  SECTION("with one") {
    test.hand_over(kA, kB);
    test.use(kB, false);
    CHECK(test.checker.violations().empty());
  }
  SECTION("for an event that was recorded too early") {
    const auto early = test.checker.now(kA);
    test.use(kA, true);
    test.checker.wait(early, kB);
    test.use(kB, false);
    CHECK(test.checker.violations().size() == 1);
  }
}

TEST_CASE("stream checker: which uses must be ordered") {
  Fixture test;
  test.hand_over(kA, kB);
  SECTION("reads need no order among them") {
    test.use(kA, false);
    test.use(kB, false);
    CHECK(test.checker.violations().empty());
  }
  SECTION("a write comes after reads") {
    test.use(kA, false);
    test.use(kB, true);
    CHECK(test.checker.violations().size() == 1);
  }
  SECTION("other bytes are no matter") {
    test.use(kA, true, 0, 32);
    test.use(kB, true, 32, 32);
    CHECK(test.checker.violations().empty());
    test.use(kB, true, 31, 1);
    CHECK(test.checker.violations().size() == 1);
  }
}

TEST_CASE("stream checker: order passes through a third stream and through the host") {
  Fixture test;
  test.use(kA, true);
  SECTION("a stream") {
    test.hand_over(kA, 3);
    test.hand_over(3, kB);
  }
  SECTION("the host") {
    test.checker.wait_on_host(test.checker.now(kA));
  }
  test.use(kB, true);
  CHECK(test.checker.violations().empty());
}

TEST_CASE("stream checker: uses of freed or unknown memory do not count") {
  Fixture test;
  test.use(kA, true);
  test.checker.remove_memory(test.memory.data());
  test.use(kB, true);
  CHECK(test.checker.violations().empty());
}

TEST_CASE("stream checker: memory may be unmapped when all of its uses are known to have ended") {
  Fixture test;
  test.use(kA, true);
  StreamChecker::Clock waited = test.checker.now(kA);
  test.hand_over(kA, kB);
  test.use(kB, false);
  SECTION("one is not") {
    test.checker.unmap_memory(test.memory.data(), waited);
    REQUIRE(test.checker.violations().size() == 1);
    CHECK(test.checker.violations().front() == "memory is unmapped that reduce reads (r)");
  }
  SECTION("all are") {
    StreamChecker::join(waited, test.checker.now(kB));
    test.checker.unmap_memory(test.memory.data(), waited);
    CHECK(test.checker.violations().empty());
  }
  CHECK_FALSE(test.checker.knows(test.memory.data()));
}

}  // namespace zerorun::testing
