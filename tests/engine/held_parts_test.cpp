// Tests what generations in memory (zerorun --hold_every) copy, and when: frozen parameters once, and a step
// when the program asks for it.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "checkpoint/held_generation.h"
#include "tests/engine/held_launcher.h"
#include "tests/engine/state_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const StateCase kAdamW{.name = "AdamW", .optimizer = R"({"type": "AdamW", "params": {"lr": 0.01}})"};

// Changes a byte of the file that lies first in each of rank 0's generations.
void damage_first_files() {
  const OpenHeldMemory memory = open_held_memory();
  for (const UniqueFd& slot : memory.ranks.front()) {
    const auto there = checkpoint::read_generation(slot.get());
    expect(there.has_value(), "a generation");
    const auto first = std::ranges::find(there->places, checkpoint::kHeldBegin,
                                         [](const auto& named) { return named.second.offset; });
    expect(first != there->places.end(), "a file behind the first page");
    char byte = 0;
    const int64_t place = first->second.offset + first->second.bytes / 2;
    expect(::pread(slot.get(), &byte, 1, place) == 1, "a byte to read");
    byte = static_cast<char>(byte ^ 1);
    expect(::pwrite(slot.get(), &byte, 1, place) == 1, "a byte to write");
  }
}

double sum_of_frozen(StateTraining& training) {
  const at::NoGradGuard no_grad;
  return training.model->fixed.sum().item<double>();
}

}  // namespace

TEST_CASE("frozen parameters are copied once into each generation, and again once they have changed") {
  const int stage = GENERATE(0, 2, 3);
  const bool writes = GENERATE(false, true);
  CAPTURE(stage, writes);
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "saves";
  const HeldLauncher launcher(2);
  double before = 0;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(kAdamW, stage, "fp32", communicator);
    training.engine->load_newest(folder);
    const double sum = sum_of_frozen(training);
    for (int step = 0; step < 4; ++step) training.step(step);
    communicator->barrier("steps")->wait();
    if (communicator->rank() == 0) damage_first_files();
    if (communicator->rank() == 0) before = sum;
    communicator->barrier("damage")->wait();
    if (writes) {
      const at::NoGradGuard no_grad;
      training.model->fixed.mul_(2);
    }
    for (int step = 4; step < 6; ++step) training.step(step);
  });
  StderrCapture capture;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(kAdamW, stage, "fp32", communicator);
    const auto found = training.engine->load_newest(folder);
    expect(found.has_value() == writes, "what is found");
    if (writes) expect(sum_of_frozen(training) == 2 * before, "the changed values");
  });
  if (!writes)
    CHECK_THAT(capture.text(), Contains("is damaged and passed over") && Contains("memory/global_step6/") &&
                                   Contains("fixed (value)"));
}

TEST_CASE("a step is held when the program asks for it") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "saves";
  const HeldLauncher launcher(2);
  const auto go_on = [&](int64_t expected, bool asks) {
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      StateTraining training(kAdamW, 1, "fp32", communicator);
      training.engine->hold_generation();  // nothing is held yet
      training.engine->load_newest(folder, {.holds_when_asked = true});
      expect(training.engine->global_steps() == expected, "steps so far");
      training.step(static_cast<int>(training.engine->global_steps()));
      if (asks) training.engine->hold_generation();
    });
  };
  go_on(0, true);
  go_on(1, false);
  go_on(1, true);
  go_on(2, true);
}

}  // namespace zerorun::testing
