// Runs the gpt2 sample on meshes of 8 ranks as a user does, beside one plain process.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

#include "base/mesh_sizes.h"
#include "tests/samples/programs_support.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

// The command of a rank that trains a small GPT-2, whose embedding and head are tied, with clipping and an
// accumulation of 8, on the same samples whatever the mesh. Writes its steps to `csv`.
std::string gpt2(const TemporaryFolder& folder, const MeshSizes& mesh, int stage, int steps,
                 const std::string& csv) {
  folder.write("config.json",
               R"({"train_batch_size": 64, "gradient_accumulation_steps": 8, "gradient_clipping": 0.5,
      "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization":
      {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 30000,
       "stage3_prefetch_bucket_size": 10000, "stage": )" +
                   std::to_string(stage) + "}}");
  return kBin + "gpt2 --deepspeed " + (folder / "config.json").string() +
         " --layers 8 --hidden 32 --heads 8 --seq 16 --steps " + std::to_string(steps) +
         " --generate 0 --data " ZERORUN_SOURCE_DIR "/docs/guide.md --csv " + (folder / csv).string() +
         " --tensor-parallel " + std::to_string(mesh.tensor) + " --pipeline " + std::to_string(mesh.pipeline);
}

// Runs `rank` as all ranks of a mesh. `options`: the launcher's.
Outcome run_mesh(const TemporaryFolder& folder, const MeshSizes& mesh, const std::string& rank,
                 const std::string& options = "") {
  const int ranks = mesh.data * mesh.tensor * mesh.pipeline;
  const Outcome outcome = run(folder, "OMP_NUM_THREADS=1 ZERORUN_DEVICE=cpu " + kBin + "zerorun --num_gpus " +
                                          std::to_string(ranks) + " " + options + " " + rank);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome;
}

std::vector<std::map<std::string, double>> train(const TemporaryFolder& folder, const MeshSizes& mesh,
                                                 int stage, int steps = 3) {
  std::filesystem::remove(folder / "steps");
  run_mesh(folder, mesh, gpt2(folder, mesh, stage, steps, "steps"));
  return read_csv(folder / "steps");
}

void check_close(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
  REQUIRE(found.size() == expected.size());
  for (size_t step = 0; step < found.size(); ++step)
    CHECK(std::abs(found[step] - expected[step]) < tolerance * expected[step]);
}

}  // namespace

TEST_CASE("gpt2: the losses and norms of one process on every mesh of 8 ranks") {
  const TemporaryFolder folder;
  const auto plain = train(folder, {1, 1, 1}, 0);
  REQUIRE(plain.size() == 3);
  for (int stage = 0; stage < 4; ++stage) {
    for (const int data : {8, 4, 2, 1}) {
      for (int tensor = 1; tensor <= 8 / data; tensor *= 2) {
        const MeshSizes mesh{data, tensor, 8 / data / tensor};
        if (!tries_all() && !(stage == 3 && mesh == MeshSizes{2, 2, 2})) continue;
        CAPTURE(describe(mesh), stage);
        const auto found = train(folder, mesh, stage);
        check_close(column(found, "loss"), column(plain, "loss"), 1e-6);
        check_close(column(found, "grad_norm"), column(plain, "grad_norm"), 1e-5);
      }
    }
  }
}

TEST_CASE("gpt2: a mesh whose ranks are killed ends with the bits of an undisturbed one") {
  const TemporaryFolder folder;
  const MeshSizes mesh{2, 2, 2};
  const char* wanted = std::getenv("ZERORUN_KILLS");
  const int kills = wanted ? std::atoi(wanted) : 1;
  const int stage = 2, steps = 8 + 4 * kills;
  const auto calm = train(folder, mesh, stage, steps);
  // In each attempt another rank is killed: while ranks start, or behind a later step.
  const std::string rank =
      gpt2(folder, mesh, stage, steps, "log") + " --save-every 2 --save-dir " + (folder / "saves").string();
  const std::string script = folder.write(
      "job.sh", "attempt=${ZERORUN_RESTARTS:-0}\n[ $attempt -lt " + std::to_string(kills) +
                    " ] && [ $(((attempt * 5 + 3) % 8)) = $RANK ] || exec " + rank + "\n" + rank +
                    " & rank=$!\n(until [ $((attempt % 2)) = 1 ] || grep -q \"^$((attempt * 4)),\" " +
                    (folder / "log").string() +
                    "; do sleep 0.01; done; sleep $((attempt * 7 % 4)).$((attempt * 3 % 10)); kill -9 $rank) "
                    "& killer=$!\nwait $rank; code=$?\nkill $killer\nexit $code\n");
  const Outcome outcome = run_mesh(folder, mesh, "sh " + script, "--max_restarts " + std::to_string(kills));
  CHECK_THAT(outcome.err, Catch::Contains("restart " + std::to_string(kills) + " of "));
  const auto log = read_csv(folder / "log");
  for (const char* name : {"loss", "grad_norm"}) CHECK(column(log, name) == column(calm, name));
}

}  // namespace zerorun::testing
