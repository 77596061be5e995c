// Timelines of ranks that are threads of the test: which spans and transfers an engine records.
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>
#include <string>

#include "monitor/timeline_file.h"
#include "tests/engine/net.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"
#include "tests/timeline/perfetto_reader.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

// Stage 3 with the optimizer's states in files.
std::string offloading_config(const TemporaryFolder& folder, const std::string& more) {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0,
      "offload_optimizer": {"device": "nvme", "nvme_path": ")" +
         folder.write("states.txt", "").parent_path().string() + R"("}},
    "zerorun": {"timeline": {"enabled": true, "path": ")" +
         (folder / "t.tar").string() + "\"" + more + "}}}";
}

void train(Engine& engine, Net& net, int steps, bool plain) {
  const int rank = engine.communicator().rank();
  for (int step = 0; step < steps; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      const at::Tensor loss = net(sample(step, micro, rank), false).square().mean();
      if (plain) {
        loss.backward();
      } else {
        engine.backward(loss);
      }
      engine.step();
    }
  }
}

size_t count(const ReadTrace& trace, const std::string& name) {
  return trace.named(name, TraceEvent::begin).size();
}

}  // namespace

TEST_CASE("Ranks that are threads have timelines of their own, with offloaded states and checkpoints") {
  const TemporaryFolder folder;
  for (const bool plain : {false, true}) {
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net net;
      Engine engine = make_engine(*net, offloading_config(folder, ""), communicator);
      train(engine, net, 3, plain);
      if (plain) return;
      engine.save_checkpoint(folder / "checkpoints", "tag");
      engine.wait_for_checkpoint();
      train(engine, net, 1, plain);
    });
    const size_t steps = plain ? 3 : 4;
    const auto files = read_tar(read_file(folder / "t.tar"));
    REQUIRE(files.size() == 3);
    for (const int rank : {0, 1}) {
      const ReadTrace trace = read_trace(files.at(rank_file_name(rank)));
      INFO("rank " << rank << (plain ? ", loss.backward()" : ""));
      // Transfers that a step has started and the next one waits for may be under way.
      std::set<std::string> open = check_nesting(trace);
      for (const char* transfer : {"all_gather", "read from files", "write to files"}) open.erase(transfer);
      CHECK(open == std::set<std::string>());
      CHECK(trace.packets.begin()->first == static_cast<uint64_t>(rank + 1));
      CHECK(count(trace, "forward") == 2 * steps);
      CHECK(count(trace, "backward") == 2 * steps);
      CHECK(count(trace, "step") == steps);
      CHECK(trace.named("end of step", TraceEvent::instant).size() == steps);
      CHECK(count(trace, "wait for a gather") > 0);
      CHECK(count(trace, "read from files") > 0);
      CHECK(count(trace, "write to files") >= steps);
      CHECK(trace.on("states in files", TraceEvent::counter).back().value > 0);
      for (const TraceEvent& wait : trace.named("wait for ranks", TraceEvent::begin)) {
        const auto other = wait.arguments.find("first rank");
        CHECK((other == wait.arguments.end() || other->second == 1 - rank));
      }
    }
  }
}

TEST_CASE("A timeline of chosen steps is written when they are over, while the training goes on") {
  const TemporaryFolder folder;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    Engine engine = make_engine(*net, offloading_config(folder, R"(, "steps": [2, 3])"), communicator);
    const fs::path file = folder_of_ranks(folder / "t.tar") / rank_file_name(communicator->rank());
    train(engine, net, 2, false);
    expect(!fs::exists(file), "no file before the last of the steps");
    train(engine, net, 1, false);
    expect(fs::exists(file), "a file after it");
    const ReadTrace trace = read_trace(read_file(file));
    expect(trace.named("end of step", TraceEvent::instant).size() == 2, "two steps");
    expect(count(trace, "step") == 2 && count(trace, "backward") == 4, "their spans");
    train(engine, net, 1, false);
  });
  CHECK(fs::exists(folder / "t.tar"));
}

}  // namespace zerorun::testing
