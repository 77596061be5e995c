// Tests HungRanks on made-up observations, and what is read of processes in /proc.
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "launcher/hung_ranks.h"
#include "launcher/process_state.h"
#include "tests/support/temporary_folder.h"

using namespace zerorun;
using namespace zerorun::launcher;
using namespace std::chrono_literals;
using zerorun::testing::TemporaryFolder;

namespace {

// Ranks whose boards a test writes, and the launcher's rounds.
struct HungScene {
  explicit HungScene(size_t count, std::chrono::milliseconds hung_after = 2s,
                     std::chrono::milliseconds joining = 10s)
      : ranks(count), hung(hung_after, joining) {
    for (SeenRank& rank : ranks) {
      rank.now.activity = Activity::program;
      rank.state = 'S';
    }
  }

  void wait(size_t rank) {
    ++ranks[rank].now.changes;
    ranks[rank].now.waiters = 1;
  }
  void go_on(size_t rank) {
    ++ranks[rank].now.changes;
    ranks[rank].now.waiters = 0;
  }
  // Looks `rounds` times, with `pause` between two looks.
  void look(int rounds, std::chrono::milliseconds pause = kHungTick) {
    for (int round = 0; round < rounds; ++round) {
      time += pause;
      hung.see(ranks, time);
    }
  }
  int found() const {
    const auto result = hung.find();
    return result ? static_cast<int>(result->rank) : -1;
  }

  std::vector<SeenRank> ranks;
  HungRanks hung;
  HungRanks::Time time{};
};

constexpr int kRounds = 9;  // of a quarter of a second: the first one only sees

}  // namespace

TEST_CASE("hung ranks: the rank for which others wait, after the time and not before") {
  HungScene scene(3);
  scene.look(100);
  CHECK(scene.found() == -1);  // nobody waits: all compute
  scene.wait(0);
  scene.wait(2);
  scene.look(kRounds - 1);
  CHECK(scene.found() == -1);
  scene.look(1);
  CHECK(scene.found() == 1);
  const auto found = scene.hung.find();
  REQUIRE(found);
  CHECK(found->time == 2s);
  CHECK((found->waiting == 0 && found->others.empty()));
}

TEST_CASE("hung ranks: signs of life, of the rank or of those that wait, begin the count anew") {
  HungScene scene(2);
  scene.wait(0);
  for (int round = 0; round < 40; ++round) {
    scene.look(kRounds - 2);
    scene.go_on(1);
  }
  CHECK(scene.found() == -1);
  for (int round = 0; round < 40; ++round) {
    scene.look(kRounds - 2);
    scene.wait(0);
  }
  CHECK(scene.found() == -1);
}

TEST_CASE("hung ranks: ranks that wait for each other are no business of the launcher's") {
  HungScene scene(2);
  scene.wait(0);
  scene.wait(1);
  scene.look(1000);
  CHECK(scene.found() == -1);
}

TEST_CASE("hung ranks: a rank that is stopped while it waits") {
  for (const char state : {'T', 'D'}) {
    HungScene scene(2);
    scene.wait(0);
    scene.wait(1);
    scene.ranks[1].state = state;
    scene.look(kRounds);
    CHECK(scene.found() == 1);
  }
}

TEST_CASE("hung ranks: a rank that a debugger has stopped is left alone") {
  for (const bool waits : {false, true}) {
    HungScene scene(2);
    scene.wait(0);
    if (waits) scene.wait(1);
    scene.ranks[1].state = 't';
    scene.look(1000);
    CHECK(scene.found() == -1);
  }
}

TEST_CASE("hung ranks: time in which the job is stopped as a whole does not count") {
  HungScene scene(2);
  scene.wait(0);
  scene.look(kRounds - 4);
  SECTION("with the launcher") {
    scene.look(1, 3h);
  }
  SECTION("without the launcher") {
    for (SeenRank& rank : scene.ranks) rank.state = 'T';
    scene.look(1000);
    CHECK(scene.found() == -1);
    for (SeenRank& rank : scene.ranks) rank.state = 'S';
  }
  SECTION("the ranks that wait, by a debugger") {
    scene.ranks[0].state = 't';
    scene.look(1000);
    CHECK(scene.found() == -1);
    scene.ranks[0].state = 'S';
  }
  CHECK(scene.found() == -1);
  scene.go_on(1);
  scene.look(kRounds - 1);
  CHECK(scene.found() == -1);
  scene.look(2);
  CHECK(scene.found() == 1);
}

TEST_CASE("hung ranks: before a rank has an engine, the longer time counts") {
  for (const Activity activity : {Activity::no_engine, Activity::initializing}) {
    HungScene scene(2);
    scene.wait(0);
    scene.ranks[1].now.activity = activity;
    scene.look(4 * 10);
    CHECK(scene.found() == -1);
    scene.look(1);
    CHECK(scene.found() == 1);
  }
}

TEST_CASE("hung ranks: of several the stopped one comes first, then one in the program's own code") {
  HungScene scene(4);
  scene.wait(0);
  scene.ranks[1].now.activity = Activity::backward;
  scene.look(kRounds);
  CHECK(scene.found() == 2);
  CHECK(scene.hung.find()->others == std::vector<size_t>{1, 3});
  scene.ranks[3].state = 'T';
  scene.look(1);
  CHECK(scene.found() == 3);
}

TEST_CASE("hung ranks: behind a rank that has failed at its deadline") {
  const auto behind = [](int rounds, bool waited) {
    HungScene scene(2, 10s);
    if (waited) {
      scene.wait(0);
      scene.look(rounds);
      scene.ranks[0].now.waiters = 0;
      scene.ranks[0].now.has_given_up = 1;
    }
    scene.look(1);
    scene.ranks[0].is_running = false;
    scene.look(1);
    CHECK(scene.found() == -1);
    return scene.hung.find_behind(0, 2s);
  };
  CHECK(behind(kRounds - 1, true)->rank == 1);
  CHECK_FALSE(behind(2, true));  // it has failed otherwise
  CHECK_FALSE(behind(100, false));
  HungScene unseen(2);
  CHECK_FALSE(unseen.hung.find_behind(0, 2s));
}

TEST_CASE("hung ranks: states of processes are read only if a rank waits on") {
  HungScene scene(2);
  scene.look(1);
  CHECK_FALSE(scene.hung.needs_states(scene.ranks));
  scene.wait(0);
  CHECK_FALSE(scene.hung.needs_states(scene.ranks));
  scene.look(1);
  CHECK(scene.hung.needs_states(scene.ranks));
  CHECK_FALSE(scene.hung.is_due(scene.time + kHungTick / 2));
  CHECK(scene.hung.is_due(scene.time + kHungTick));
}

TEST_CASE("the state of a process is read from /proc, whatever its name") {
  const TemporaryFolder root;
  std::filesystem::create_directories(root / "proc/7/task/8");
  root.write("proc/7/task/8/stat", "8 (a) T (b) D 1 7 7\n");
  root.write("proc/7/task/8/wchan", "rpc_wait_bit_killable");
  const std::string top = (root / "").parent_path();
  CHECK(state_of(7, 8, top) == 'D');
  CHECK(describe_state(7, 8, top).starts_with(
      "sleeps in the kernel, where nothing wakes it (in rpc_wait_bit_killable)"));
  root.write("proc/7/task/8/stat", "8 (name) T 1 7 7\n");
  CHECK(describe_state(7, 8, top).starts_with("is stopped by a signal"));
  root.write("proc/7/task/8/stat", "8 (name) S 1 7 7\n");
  root.write("proc/7/task/8/wchan", "0");
  CHECK(describe_state(7, 8, top) == "sleeps");
  CHECK(state_of(9, 9, top) == '?');
}

TEST_CASE("what a rank does, in words") {
  ActivityNow now{.activity = Activity::program};
  CHECK(place_of(now) == "in its own code between calls of the engine");
  std::string("the data loader").copy(now.part.data(), now.part.size() - 1);
  CHECK(place_of(now) == "in its own code between calls of the engine, in 'the data loader'");
  std::string("all_reduce of the gradient norm").copy(now.wait.data(), now.wait.size() - 1);
  now.waiters = 1;
  CHECK(place_of(now) == "in all_reduce of the gradient norm");
}
