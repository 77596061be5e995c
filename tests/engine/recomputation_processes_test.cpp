// Tests recomputation with dropout on ranks that are processes: rank-threads share LibTorch's generator.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <string>

#include "comm/connect/rendezvous.h"
#include "tests/comm/rank_processes.h"
#include "tests/engine/recomputed_model.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

const std::string kKinds[] = {"", R"(, "bf16": {"enabled": true})",
                              R"(, "fp16": {"enabled": true, "initial_scale_power": 8})"};

std::string train_twice(int rank, int world, int port, const char* comm, const std::string& kept,
                        const std::string& recomputed) {
  at::set_num_threads(1);
  set_rank_variables(rank, world, port, std::chrono::seconds(60));
  setenv("ZERORUN_COMM", comm, 1);
  const std::shared_ptr<Communicator> communicator = connect();
  const BlockRun expected = train_blocks(kept, communicator, 0.3);
  expect_same_bits(train_blocks(recomputed, communicator, 0.3), expected);
  return "the same bits";
}

}  // namespace

TEST_CASE("Processes that recompute blocks with dropout have the bits of a run without recomputation") {
  for (const auto [stage, kind, accumulates, ranks, over_gloo] : settings(4, 3, 2, 2, 2)) {
    CAPTURE(stage, kind, accumulates, ranks, over_gloo);
    const std::string& more = kKinds[kind];
    const std::string kept = block_config(stage, more, 1 + accumulates);
    const std::string recomputed = block_config(stage, more + recomputing(R"("every": 1)"), 1 + accumulates);
    const char* comm = over_gloo ? "gloo" : "shm";
    const int world = 2 + ranks, port = free_port();
    for (const Ending& ending : run_processes(
             world, [&](int rank) { return train_twice(rank, world, port, comm, kept, recomputed); })) {
      CHECK(ending.status == 0);
      CHECK(ending.text == "the same bits");
    }
  }
}

}  // namespace zerorun::testing
