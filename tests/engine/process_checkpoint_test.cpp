// Tests checkpoints of ranks that are processes and communicate over shared memory or over Gloo. Training
// over one of them resumes from checkpoints that were saved over the other.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <random>
#include <sstream>

#include "checkpoint/publication.h"
#include "comm/connect/rendezvous.h"
#include "engine/saving/checkpoints.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/comm/rank_processes.h"
#include "tests/engine/state_support.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

constexpr int kSaved = 3;
constexpr int kSteps = 6;

struct Way {
  int ranks;
  int stage;
  std::string comm;
  std::string precision;
  bool adds_up;  // accumulates over several micro-steps
};

// Trains up to the checkpoint and saves it. If `loads`, loads the checkpoint instead. Returns the losses of
// the steps after the checkpoint, as text.
std::string run(const Way& way, int rank, int port, const std::filesystem::path& folder, bool loads) {
  at::set_num_threads(1);
  set_rank_variables(rank, way.ranks, port, std::chrono::minutes(1));
  setenv("ZERORUN_COMM", way.comm.c_str(), 1);
  StateTraining training(all_state_cases().front(), way.stage, way.precision, connect(),
                         way.adds_up ? R"(, "gradient_accumulation_steps": 2)" : "");
  if (loads) {
    training.engine->load_checkpoint(folder);
  } else {
    for (int step = 0; step < kSaved; ++step) training.step(step);
    training.engine->save_checkpoint(folder, "some");
  }
  std::ostringstream losses;
  for (int step = kSaved; step < kSteps; ++step) losses << std::hexfloat << training.step(step) << ' ';
  return losses.str();
}

std::vector<std::string> run_all(const Way& way, const std::filesystem::path& folder, bool loads) {
  const int port = free_port();
  std::vector<std::string> texts;
  for (const Ending& ending :
       run_processes(way.ranks, [&](int rank) { return run(way, rank, port, folder, loads); })) {
    INFO(ending.text);
    REQUIRE(ending.status == 0);
    REQUIRE(ending.text.find("rror") == std::string::npos);
    texts.push_back(ending.text);
  }
  return texts;
}

// Rank 1 exits during a save. Rank 0's training then ends with an error, and must not wait for that save.
std::string survive(int rank, int port, const std::filesystem::path& folder) {
  at::set_num_threads(1);
  set_rank_variables(rank, 2, port, std::chrono::minutes(5));
  setenv("ZERORUN_COMM", "shm", 1);
  StateTraining training(all_state_cases().front(), 2, "fp32", connect());
  training.step(0);
  training.engine->save_checkpoint(folder, "", {.asynchronous = false});
  FaultyFileSystem files(local_file_system(), {.call = rank == 1 ? 0 : -1, .meanwhile = [] { ::_exit(3); }});
  training.state->checkpoints.write_to(files);
  save_checkpoint(*training.state, folder, "second", {});
  for (int step = 1; step < 100'000; ++step) training.step(step);
  return "never";
}

// Rank 1's working folder is gone.
std::string save_from_nowhere(int rank, int port, const std::filesystem::path& folder) {
  at::set_num_threads(1);
  set_rank_variables(rank, 2, port, std::chrono::minutes(5));
  setenv("ZERORUN_COMM", "shm", 1);
  StateTraining training(all_state_cases().front(), 2, "fp32", connect());
  const std::filesystem::path own = folder / std::to_string(rank);
  std::filesystem::create_directories(own);
  std::filesystem::current_path(own);
  if (rank == 1) std::filesystem::remove(own);
  training.engine->save_checkpoint("saves");
  return "saved";
}

}  // namespace

TEST_CASE("If one rank's working folder is gone, a save by a relative path fails on all ranks at once") {
  const TemporaryFolder folder;
  const int port = free_port();
  for (const Ending& ending :
       run_processes(2, [&](int rank) { return save_from_nowhere(rank, port, folder / ""); })) {
    CAPTURE(ending.text);
    CHECK(ending.text.find("UserError: rank 1: saves: the program's working folder cannot be found") == 0);
    CHECK(ending.seconds < 30);
  }
}

TEST_CASE(
    "If a rank dies in a save, the other rank fails within seconds, and the previous checkpoint stays") {
  const TemporaryFolder folder;
  const int port = free_port();
  const auto endings = run_processes(2, [&](int rank) { return survive(rank, port, folder / "a"); });
  CAPTURE(endings[0].text);
  CHECK(endings[0].text.find("CommError") == 0);
  CHECK(endings[0].seconds < 30);
  CHECK(latest_tag(local_file_system(), folder / "a") == "global_step1");
}

TEST_CASE("Processes continue from checkpoints of other processes with the same bits") {
  constexpr int kPairs = 10;
  std::mt19937_64 random(5);
  auto any = [&](int count) { return static_cast<int>(random() % static_cast<uint64_t>(count)); };
  for (int pair = 0; pair < kPairs; ++pair) {
    const TemporaryFolder folder;
    const std::string precision = std::vector<std::string>{"fp32", "bf16", "fp16"}[any(3)];
    const bool adds_up = any(2) == 0;  // the checkpoint is then between micro-steps
    const int stage = any(4);
    const std::vector<std::string> comms = {"shm", "gloo"};
    const Way writer{1 + any(3), stage, comms[any(2)], precision, adds_up};
    const Way reader{writer.ranks, adds_up ? stage ^ 1 : any(4), comms[any(2)], precision, adds_up};
    CAPTURE(pair, precision, adds_up, writer.ranks, writer.stage, writer.comm, reader.stage, reader.comm);
    const auto written = run_all(writer, folder / "a", false);
    CHECK(run_all(reader, folder / "a", true) == written);
    if (adds_up) continue;
    const Way other{1 + any(3), any(4), comms[any(2)], precision, false};
    CAPTURE(other.ranks, other.stage, other.comm);
    CHECK(run_all(other, folder / "a", true).size() == static_cast<size_t>(other.ranks));
  }
}

}  // namespace zerorun::testing
