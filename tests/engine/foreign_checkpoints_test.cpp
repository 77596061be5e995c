// Tests that checkpoints of version 1, and those imported from DeepSpeed, are read into models that tensor
// ranks and pipeline stages have divided.
#include <catch2/catch.hpp>
#include <filesystem>

#include "convert/import_checkpoint.h"
#include "engine/gathered_parameters.h"
#include "engine/parameter_states.h"
#include "engine/saving/checkpoint_contents.h"
#include "tests/engine/mesh_support.h"
#include "tests/engine/parameter_model.h"
#include "tests/engine/pipeline_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

const std::vector<MeshSizes> kMeshes = {{1, 2, 1}, {1, 1, 2}, {1, 2, 2}, {2, 2, 1}, {2, 1, 2},
                                        {3, 1, 1}, {2, 2, 2}, {1, 3, 1}, {1, 1, 3}};

// A state as the files have it, in fp32.
at::Tensor saved_values(checkpoint::SavedState& saved, const std::string& name, const std::string& state) {
  const checkpoint::SavedParameter& parameter = saved.manifest().parameters.at(name);
  const at::Tensor values =
      at::empty_strided(parameter.shape, parameter.strides, dtype_of(saved.dtype_of(name, state)));
  saved.read(name, state, 0, values.numel(),
             {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  return values;
}

// Loads on a mesh, at a stage, and compares what each rank has with the files.
void check_loads(const fs::path& folder, const MeshSizes& mesh, int stage) {
  CAPTURE(folder, describe(mesh), stage);
  std::atomic<int> states_seen = 0;
  CHECK_NOTHROW(run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
    checkpoint::SavedState saved(checkpoint::local_file_system(), folder);
    ParameterModel model(saved, mesh.tensor);
    const std::string optimizer =
        R"({"type": ")" + saved.manifest().optimizer + R"(", "params": {"lr": 0.1}})";
    Engine engine = model.engine(decoder_config(stage, optimizer), mesh, std::move(communicator));
    // Parameter groups, and windows of other ranks, are the writer's.
    engine.load_checkpoint(folder, "", {.counters = false});
    ParameterStates states(engine);
    for (const auto& [name, parameter] : model.parameters) {
      const checkpoint::SavedParameter& there = saved.manifest().parameters.at(name);
      if (there.excluded || !is_of_stage(parameter, model.pipeline, engine.mesh())) continue;
      const auto exact = [&](const std::string& state) {
        return saved_values(saved, name, state).to(at::kFloat).contiguous();
      };
      {
        GatheredParameters whole(engine, {parameter});
        expect_same(parameter.detach().contiguous(),
                    exact(saved.dtype_of(name, "master").empty() ? "value" : "master"), name);
      }
      if (!there.trained) continue;
      for (const std::string& state : states.names(parameter)) {
        expect_same(states.read(parameter, state).contiguous(), exact(state), state + " of " + name);
        ++states_seen;
      }
    }
    for (const auto& [name, buffer] : model.buffers) {
      if (is_of_stage(buffer, model.pipeline, engine.mesh()))
        expect_same(buffer, saved_values(saved, name, "value"), name);
    }
  }));
  CHECK(states_seen > 0);
}

// Loads on some of the meshes, or all of them.
void check_meshes(const fs::path& folder, size_t& next) {
  const size_t tries = tries_all() ? kMeshes.size() : 2;
  for (size_t index = 0; index < tries; ++index, ++next)
    check_loads(folder, kMeshes[next % kMeshes.size()], static_cast<int>(next % 4));
}

}  // namespace

TEST_CASE("Checkpoints of version 1 are read into any mesh") {
  size_t next = 0;
  for (const auto& entry : fs::directory_iterator(ZERORUN_SOURCE_DIR "/tests/engine/data/checkpoints_1"))
    check_meshes(entry.path(), next);
  CHECK(next >= 8);
}

TEST_CASE("DeepSpeed's checkpoints of data-parallel runs are read into any mesh") {
  size_t next = 0;
  for (const auto& entry : fs::directory_iterator(ZERORUN_SOURCE_DIR "/tests/convert/data")) {
    if (!fs::exists(entry.path() / "checkpoint")) continue;
    const TemporaryFolder folder;
    const auto imported = convert::import_checkpoint(
        checkpoint::local_file_system(),
        convert::read_deepspeed_checkpoint(checkpoint::local_file_system(), entry.path() / "checkpoint"),
        folder / "out", "");
    check_meshes(imported.folder, next);
  }
  CHECK(next >= 20);
}

}  // namespace zerorun::testing
