// Tests engine.offload_states(). State that moves from a rank's GPU to the host and back is unchanged. Until
// it is back, calls that need it are refused. Ranks on CPUs refuse the same calls as ranks on GPUs.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/engine/streams_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

const std::vector<OffloadedState> kAll{OffloadedState::moments, OffloadedState::master_weights,
                                       OffloadedState::gradients};

void check_refused(Engine& engine, const std::filesystem::path& folder) {
  const std::string why = "the optimizer's states have been moved by offload_states()";
  CHECK_THROWS_WITH(engine.backward(torch::ones({}, torch::requires_grad())), Contains(why));
  CHECK_THROWS_WITH(engine.step(), Contains(why) && Contains("engine.step()") && Contains("reload_states()"));
  CHECK_THROWS_WITH(engine.save_checkpoint(folder), Contains(why));
  CHECK_THROWS_WITH(engine.load_checkpoint(folder), Contains(why));
}

int64_t movable(const BytesByCategory& bytes) {
  return bytes.gradients + bytes.master + bytes.moments;
}

}  // namespace

TEST_CASE("states on the host: training continues with the same bits, and all uses of memory are ordered") {
  const TemporaryFolder folder;
  Program program{.side_streams = true, .evaluates = true, .saves_to = folder / "saves"};
  program.after_step = [&](int step, Engine& engine) {
    const int64_t before = movable(engine.bytes_by_category());
    engine.offload_states(step % 2 == 0 ? kAll : std::vector{OffloadedState::moments});
    if (step % 3 == 0) engine.offload_states();  // state already on the host stays there
    check_refused(engine, folder / "saves");
    const BytesByCategory away = engine.bytes_by_category();
    if (engine.communicator().device().streams().asynchronous()) {
      CHECK(before > 0);
      CHECK(movable(away) < before);
      if (step % 2 == 0) CHECK(movable(away) == 0);
      if (step % 2 == 0) CHECK(away.on_host == before);
    } else {
      CHECK(movable(away) == before);
    }
    engine.reload_states();
    CHECK(movable(engine.bytes_by_category()) == before);
    engine.reload_states();
  };
  for (const auto& [stage, type, ranks, client] : settings(4, 3, 2, 2)) {
    CAPTURE(stage, type, ranks, client);
    check_beside_plain(
        {.stage = stage, .ranks = 1 + ranks, .precision = kPrecisions[type], .client = client == 1}, program);
  }
}

TEST_CASE("states on the host: the GPU's memory is freed, and page-locked memory is allocated once") {
  std::vector<Recording> recordings(1);
  std::vector<int64_t> live, page_locked;
  Program program;
  program.after_step = [&](int, Engine& engine) {
    const int64_t before = recordings[0].live_bytes;
    const int64_t states = movable(engine.bytes_by_category());
    engine.offload_states();
    CHECK(before - recordings[0].live_bytes == states);
    page_locked.push_back(recordings[0].host_bytes);
    engine.reload_states();
    CHECK(recordings[0].live_bytes == before);
  };
  run_recorded({.stage = 2, .ranks = 1, .precision = kBf16}, program, recordings);
  check_clean(recordings);
  CHECK(page_locked.front() == page_locked.back());
}

TEST_CASE("states on the host: forward passes still run") {
  const int stage = GENERATE(1, 3);
  Program program{.steps = 3, .evaluates = true};
  program.before_evaluation = [](Engine& engine) { engine.offload_states(); };
  program.after_step = [](int, Engine& engine) { engine.reload_states(); };
  check_beside_plain({.stage = stage, .precision = kBf16}, program);
}

}  // namespace zerorun::testing
