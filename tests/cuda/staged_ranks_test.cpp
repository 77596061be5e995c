// Tests training through a StagedCommunicator on the recording device. gpu_ranks_test.cpp trains the same way
// on a GPU.
#include "tests/cuda/staged_ranks.h"

#include <catch2/catch.hpp>

#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

// The runs whose bits the others must have. So only these are trained on CPU ranks, where same_bits_test
// trains the others.
std::vector<Run> references_of(std::vector<Run> runs) {
  std::erase_if(runs, [](const Run& run) { return run.name != run.same_as; });
  return runs;
}

void check_clean(const Outcome& outcome) {
  CHECK(outcome.violations.empty());
  if (!outcome.violations.empty()) WARN(outcome.violations.front());
}

}  // namespace

TEST_CASE("staged ranks: all stages and precisions have the bits of CPU ranks, and no use is out of order") {
  const std::string precisions[] = {"fp32", "bf16", "fp16", "bf16 states"};
  for (int number = 0; number < 16; ++number) {
    const int type = number % 4, four = number / 4 % 2, accumulates = number / 8;
    // Each precision once, or in all settings.
    if (!tries_all() && type != four + 2 * accumulates) continue;
    const int ranks = four == 1 ? 4 : 2;
    const std::string& precision = precisions[type];
    const int accumulation = accumulates == 1 ? 3 : 1;
    std::vector<Run> runs = all_stages("", precision, accumulation);
    for (Run& run : runs) run.infinite_steps = {2};
    const Outcomes staged = train_in_processes(Where::recorded, ranks, runs);
    const Outcomes plain = train_in_processes(Where::cpu, ranks, references_of(runs));
    for (const Run& run : runs) {
      CAPTURE(ranks, precision, accumulation, run.name);
      const Outcome& outcome = staged.at(run.name);
      check_same_bits(outcome, plain.at(run.same_as));
      check_clean(outcome);
      CHECK(outcome.skipped == 1);
    }
  }
}

TEST_CASE("staged ranks: two data groups of two ranks have the bits of two ranks") {
  const std::vector<Run> runs = all_stages("", "bf16", 2);
  const Outcomes grouped = train_in_processes(Where::recorded, 4, in_two_groups(runs));
  const Outcomes alone = train_in_processes(Where::cpu, 2, references_of(runs));
  for (const Run& run : runs) {
    CAPTURE(run.name);
    check_groups_are(grouped.at(run.name), alone.at(run.same_as));
    check_clean(grouped.at(run.name));
  }
}

namespace {

// Trains on four ranks.
void check_like_cpu_ranks(const std::vector<Run>& runs) {
  const Outcomes staged = train_in_processes(Where::recorded, 4, runs);
  const Outcomes plain = train_in_processes(Where::cpu, 4, references_of(runs));
  for (const Run& run : runs) {
    CAPTURE(run.name);
    check_same_bits(staged.at(run.name), plain.at(run.same_as));
    check_clean(staged.at(run.name));
  }
}

}  // namespace

TEST_CASE("staged ranks: ranks that split the model have the bits of CPU ranks, and no use is out of order") {
  for (const char* precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    check_like_cpu_ranks(split_in_two(all_stages("", precision, 1)));
  }
}

TEST_CASE("staged ranks: pipeline stages have the bits of CPU ranks, and no use is out of order") {
  for (const char* precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    check_like_cpu_ranks(divided_in_two(all_stages("", precision, 3)));
  }
}

TEST_CASE("staged ranks: two ranks load the checkpoint of four") {
  const TemporaryFolder folder;
  const Run save{.name = "save", .config = config_of(3, "bf16", 1), .save_to = folder / "saved"};
  const Outcomes saved = train_in_processes(Where::recorded, 4, {save});
  const std::vector<Run> runs = continued_runs(folder / "saved");
  const Outcomes staged = train_in_processes(Where::recorded, 2, runs);
  const Outcomes plain = train_in_processes(Where::cpu, 2, runs);
  CHECK(staged.at("loaded").parameters == saved.at("save").parameters);
  check_same_bits(staged.at("stage 1"), staged.at("stage 3"));
  for (const auto& [name, outcome] : staged) {
    CAPTURE(name);
    check_same_bits(outcome, plain.at(name));
    check_clean(outcome);
  }
}

}  // namespace zerorun::testing
