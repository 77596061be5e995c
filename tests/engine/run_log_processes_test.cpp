// Hashes of runs whose ranks are processes: over shared memory and over Gloo they are the same.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <string>

#include "comm/connect/rendezvous.h"
#include "monitor/run_comparison.h"
#include "tests/comm/rank_processes.h"
#include "tests/engine/net.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

std::string train(int rank, int world, int port, const std::string& comm, int stage, const std::string& log) {
  at::set_num_threads(1);
  set_rank_variables(rank, world, port, std::chrono::seconds(60));
  setenv("ZERORUN_COMM", comm.c_str(), 1);
  Net net;
  InitializeOptions options;
  options.bucket_numel = stage == 2 ? std::optional<int64_t>(20) : std::nullopt;
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": )" +
      std::to_string(stage) +
      R"(, "stage3_param_persistence_threshold": 0}, "zerorun": {"run_log": {"path": ")" + log +
      R"(", "hashes": true}}})";
  Engine engine = make_engine(*net, config, connect(), options);
  for (int step = 0; step < 3; ++step) {
    engine.backward(net(sample(step, 0, rank), true).square().mean());
    engine.step();
  }
  return "trained";
}

}  // namespace

TEST_CASE("Ranks that are processes log the same hashes over shared memory and over Gloo") {
  const TemporaryFolder folder;
  for (int world = 1; world <= 4; ++world) {
    std::vector<std::string> logs;
    for (const auto& [comm, stage] :
         {std::pair("shm", 0), std::pair("gloo", 1), std::pair("shm", 2), std::pair("gloo", 3)}) {
      const std::string log = (folder / (std::to_string(world) + comm + std::to_string(stage))).string();
      const int port = free_port();
      for (const Ending& ending : run_processes(world, [&, comm = comm, stage = stage](int rank) {
             return train(rank, world, port, comm, stage, log);
           })) {
        CHECK(ending.status == 0);
        REQUIRE(ending.text == "trained");
      }
      logs.push_back(log);
      const RunComparison comparison = compare_runs(logs.front(), log);
      INFO(to_text(comparison, logs.front(), log));
      CHECK((!comparison.parting && comparison.has_hashes && comparison.steps == 3));
      CHECK((comparison.second.transport == "shared memory") == (world > 1 && comm == std::string("shm")));
    }
  }
}

}  // namespace zerorun::testing
