// Runs the gpt2 sample on meshes of 8 ranks as a user does, beside one plain process.
#include <catch2/catch.hpp>
#include <cmath>

#include "base/mesh_sizes.h"
#include "tests/samples/programs_support.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

// Trains a small GPT-2, whose embedding and head are tied, with clipping and an accumulation of 8, on the
// same samples whatever the mesh. Returns its steps.
std::vector<std::map<std::string, double>> train(const TemporaryFolder& folder, const MeshSizes& mesh,
                                                 int stage) {
  folder.write("config.json",
               R"({"train_batch_size": 64, "gradient_accumulation_steps": 8, "gradient_clipping": 0.5,
      "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization":
      {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 30000,
       "stage3_prefetch_bucket_size": 10000, "stage": )" +
                   std::to_string(stage) + "}}");
  std::filesystem::remove(folder / "steps");
  const int ranks = mesh.data * mesh.tensor * mesh.pipeline;
  const Outcome outcome =
      run(folder,
          "OMP_NUM_THREADS=1 ZERORUN_DEVICE=cpu " + kBin + "zerorun --num_gpus " + std::to_string(ranks) +
              " " + kBin + "gpt2 --deepspeed " + (folder / "config.json").string() +
              " --layers 8 --hidden 32 --heads 8 --seq 16 --steps 3 --generate 0 --data " ZERORUN_SOURCE_DIR
              "/docs/guide.md --csv " +
              (folder / "steps").string() + " --tensor-parallel " + std::to_string(mesh.tensor) +
              " --pipeline " + std::to_string(mesh.pipeline));
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
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

}  // namespace zerorun::testing
