// Tests training through a StagedCommunicator on the recording device. gpu_ranks_test.cpp trains the same way
// on a GPU.
#include "tests/cuda/staged_ranks.h"

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

constexpr char kOnHost[] = R"(, "offload_optimizer": {"device": "cpu"})";

void check_clean(const Outcome& outcome) {
  CHECK(outcome.violations.empty());
  if (!outcome.violations.empty()) WARN(outcome.violations.front());
}

}  // namespace

TEST_CASE("staged ranks: all stages and precisions have the bits of CPU ranks, and no use is out of order") {
  const int ranks = GENERATE(2, 4);
  std::vector<Run> runs;
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    for (const int accumulation : {1, 3}) {
      for (const int stage : {0, 1, 2, 3}) {
        runs.push_back({.name = "stage " + std::to_string(stage) + ", " + precision + ", accumulation " +
                                std::to_string(accumulation),
                        .config = config_of(stage, precision, accumulation),
                        .infinite_steps = {2}});
      }
    }
  }
  runs.push_back({.name = "update on the host", .config = config_of(2, "bf16", 1, kOnHost)});
  const Outcomes staged = train_in_processes(Where::recorded, ranks, runs);
  const Outcomes plain = train_in_processes(Where::cpu, ranks, runs);
  REQUIRE(staged.size() == runs.size());
  for (const auto& [name, outcome] : staged) {
    CAPTURE(ranks, name);
    check_same_bits(outcome, plain.at(name));
    check_clean(outcome);
  }
}

TEST_CASE("staged ranks: two ranks load the checkpoint of four") {
  const TemporaryFolder folder;
  train_in_processes(Where::recorded, 4,
                     {{.name = "save", .config = config_of(3, "bf16", 1), .save_to = folder / "saved"}});
  std::vector<Run> runs;
  for (const int stage : {1, 3}) {
    runs.push_back({.name = "stage " + std::to_string(stage),
                    .config = config_of(stage, "bf16", 1),
                    .first_step = 4,
                    .steps = 7,
                    .resume_from = folder / "saved"});
  }
  const Outcomes staged = train_in_processes(Where::recorded, 2, runs);
  const Outcomes plain = train_in_processes(Where::cpu, 2, runs);
  for (const auto& [name, outcome] : staged) {
    CAPTURE(name);
    check_same_bits(outcome, plain.at(name));
    check_same_bits(outcome, plain.at("stage 1"));
    check_clean(outcome);
  }
}

}  // namespace zerorun::testing
