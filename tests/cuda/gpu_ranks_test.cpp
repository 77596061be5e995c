// Tests 2 and 4 ranks that share one GPU, over a StagedCommunicator: they train like ranks on the CPU. So
// everything but NCCL itself runs with several ranks on one card: slices, gathers ahead of their use,
// hand-overs between streams, updates on the host, checkpoints. Skipped without a GPU.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "comm/cuda_driver.h"
#include "tests/cuda/staged_ranks.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

// Ends the program if there is no GPU.
void need_gpu() {
  std::string reason;
  if (count_usable_gpus(reason) > 0) return;
  std::printf("skipped: %s\n", reason.c_str());
  std::exit(77);
}

// The allowed relative difference of losses from those of CPU ranks, which differ in the order of additions
// only: the values of gpu_training_test.cpp, where they are explained.
double tolerance_of(const std::string& precision) {
  return precision == "fp32" ? 1e-5 : 2e-3;
}

std::string name_of(const std::string& precision, int accumulation, const std::string& rest) {
  return precision + ", accumulation " + std::to_string(accumulation) + ", " + rest;
}

void check_near(const Outcome& found, const Outcome& expected, double tolerance, size_t first_step = 0) {
  REQUIRE(found.losses.size() == expected.losses.size());
  for (size_t step = first_step; step < found.losses.size(); ++step) {
    CAPTURE(step);
    CHECK(std::abs(found.mean_loss(step) - expected.mean_loss(step)) <= tolerance * expected.mean_loss(step));
  }
}

// Runs that have the same bits: all stages, and those whose updates run on the host.
std::vector<std::pair<std::string, std::string>> variants(const std::string& precision, int accumulation) {
  std::vector<std::pair<std::string, std::string>> names_and_configs;
  for (const int stage : {0, 1, 2, 3}) {
    names_and_configs.emplace_back("stage " + std::to_string(stage),
                                   config_of(stage, precision, accumulation));
  }
  if (accumulation > 1) return names_and_configs;
  const std::string on_host = R"(, "offload_optimizer": {"device": "cpu"})";
  for (const int stage : {1, 3}) {
    names_and_configs.emplace_back("stage " + std::to_string(stage) + ", updates on the host",
                                   config_of(stage, precision, accumulation, on_host));
  }
  names_and_configs.emplace_back(
      "stage 3, parameters and updates on the host",
      config_of(3, precision, accumulation, on_host + R"(, "offload_param": {"device": "cpu"})"));
  return names_and_configs;
}

}  // namespace

TEST_CASE("GPU ranks: ranks that share a GPU train like ranks on the CPU, with the same bits at all stages") {
  need_gpu();
  const int ranks = GENERATE(2, 4);
  std::vector<Run> on_gpu;
  std::vector<Run> on_cpu;
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const int accumulation : {1, 2}) {
      for (const auto& [rest, config] : variants(precision, accumulation)) {
        on_gpu.push_back({.name = name_of(precision, accumulation, rest), .config = config});
        if (rest == "stage 0") on_cpu.push_back(on_gpu.back());
      }
    }
  }
  const Outcomes found = train_in_processes(Where::gpu, ranks, on_gpu);
  const Outcomes expected = train_in_processes(Where::cpu, ranks, on_cpu);
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const int accumulation : {1, 2}) {
      const std::string first = name_of(precision, accumulation, "stage 0");
      for (const auto& [rest, config] : variants(precision, accumulation)) {
        CAPTURE(ranks, precision, accumulation, rest);
        const Outcome& outcome = found.at(name_of(precision, accumulation, rest));
        check_near(outcome, expected.at(first), tolerance_of(precision));
        check_same_bits(outcome, found.at(first));
      }
    }
  }
}

TEST_CASE("GPU ranks: two ranks that share a GPU load the checkpoint of four") {
  need_gpu();
  const TemporaryFolder folder;
  const Run save{.name = "save", .config = config_of(3, "bf16", 1), .save_to = folder / "saved"};
  const Outcomes saved = train_in_processes(Where::gpu, 4, {save});
  // A run without a step shows what was loaded.
  const Run loaded{.name = "loaded",
                   .config = config_of(3, "bf16", 1),
                   .first_step = 4,
                   .steps = 4,
                   .resume_from = folder / "saved"};
  std::vector<Run> runs = {loaded};
  for (const int stage : {1, 3}) {
    runs.push_back({.name = "stage " + std::to_string(stage),
                    .config = config_of(stage, "bf16", 1),
                    .first_step = 4,
                    .steps = 7,
                    .resume_from = folder / "saved"});
  }
  const Outcomes found = train_in_processes(Where::gpu, 2, runs);
  const Outcomes expected = train_in_processes(Where::cpu, 2, runs);
  CHECK(found.at("loaded").parameters == saved.at("save").parameters);
  CHECK(expected.at("loaded").parameters == saved.at("save").parameters);
  check_same_bits(found.at("stage 3"), found.at("stage 1"));
  check_near(found.at("stage 3"), expected.at("stage 3"), tolerance_of("bf16"), 4);
}

}  // namespace zerorun::testing
