// Tests checkpoints of tensor ranks and pipeline stages that a crash has torn, and damaged and hostile ones.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "base/hexadecimal.h"
#include "checkpoint/checksums.h"
#include "checkpoint/publication.h"
#include "checkpoint/verification.h"
#include "engine/engine_state.h"
#include "engine/parameter_states.h"
#include "engine/saving/checkpoints.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/engine/engine_internals.h"
#include "tests/engine/pipeline_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

constexpr MeshSizes kWriter{1, 2, 2};
const DecoderOptions kModel = {.fused = true, .tied = true};
const std::string kConfig = decoder_config(1, kAdam);

// Runs body(engine, model) on each rank.
template <typename Body>
void on_mesh(const MeshSizes& mesh, const std::string& config, const Body& body) {
  run_ranks(ranks_of(mesh), [&](std::shared_ptr<Communicator> communicator) {
    Decoder model(kModel);
    Engine engine = divided_engine(model, config, mesh, std::move(communicator));
    body(engine, model);
  });
}

void save_to(const fs::path& folder) {
  on_mesh(kWriter, kConfig, [&](Engine& engine, Decoder&) {
    engine.train_batch(window_of(kModel, 0, 1, 0));
    engine.save_checkpoint(folder, "", {.asynchronous = false});
  });
}

// All that a rank has: its own stage's parameters and states, whole.
std::map<std::string, at::Tensor> states_of(Engine& engine, Decoder& model) {
  std::map<std::string, at::Tensor> own = parameters_of_stage(engine, model);
  ParameterStates states(engine);
  for (const auto& parameter : model->named_parameters()) {
    if (!own.contains(parameter.key())) continue;
    for (const std::string& name : states.names(*parameter))
      own[parameter.key() + " " + name] = states.read(*parameter, name);
  }
  return own;
}

// Expects that all ranks of a job refuse the checkpoint with `error`, and have afterwards what they had.
void check_refused(const MeshSizes& mesh, const fs::path& folder, const std::string& error) {
  CAPTURE(describe(mesh), error);
  CHECK_NOTHROW(on_mesh(mesh, kConfig, [&](Engine& engine, Decoder& model) {
    const auto before = states_of(engine, model);
    expect_throws([&] { engine.load_checkpoint(folder); }, error, "the load");
    for (const auto& [name, values] : states_of(engine, model)) expect_same(values, before.at(name), name);
  }));
}

// A file with a range of a parameter's part.
json& file_with(json& manifest, const std::string& parameter, int part) {
  for (auto& [name, file] : manifest["files"].items()) {
    for (json& range : file["ranges"]) {
      if (range["parameter"] == parameter && range["state"] == "exp_avg" && range.value("part", -1) == part)
        return file;
    }
  }
  throw std::runtime_error("no file of " + parameter);
}

json& range_in(json& file, const std::string& parameter) {
  for (json& range : file["ranges"]) {
    if (range["parameter"] == parameter && range["state"] == "exp_avg") return range;
  }
  throw std::runtime_error("no range of " + parameter);
}

}  // namespace

TEST_CASE("After a crash at any moment every published checkpoint of a mesh is complete") {
  const fs::path directory = "/runs/7/checkpoints";
  MemoryFileSystem files;
  std::map<std::string, size_t> published;  // by tag: the operations until its save had ended
  std::map<std::string, std::string> manifests;
  on_mesh(kWriter, kConfig, [&](Engine& engine, Decoder&) {
    EngineState& state = *state_of(engine);
    state.checkpoints.write_to(files);
    for (int step = 0; step < 2; ++step) {
      engine.train_batch(window_of(kModel, step, 1, 0));
      const fs::path tag = save_checkpoint(state, directory, "", {});
      engine.wait_for_checkpoint();
      engine.mesh().world().barrier("saved")->wait();
      if (engine.mesh().world().rank() == 0) {
        published[tag.filename()] = files.operations().size();
        manifests[tag.filename()] =
            *checkpoint::read_text(files, directory / tag.filename() / "manifest.json");
      }
      engine.mesh().world().barrier("recorded")->wait();
    }
    state.checkpoints.finish();
  });
  REQUIRE(published.size() == 2);
  const auto& operations = files.operations();
  std::mt19937_64 random(7);
  int crashes = 0;
  for (size_t count = 0; count <= operations.size(); ++count) {
    for (const int keeps : tries_all() ? std::vector{0, 1, 2, 3, 4, 5} : std::vector{0, 2}) {
      CAPTURE(count, keeps);
      // Loses all that is not synced, keeps it, or chooses at random.
      auto left = MemoryFileSystem::after_crash(operations, count,
                                                [&] { return keeps < 2 ? keeps == 1 : random() % 2 == 0; });
      const auto tags = checkpoint::published_tags(left, directory);
      for (const auto& [tag, operations_before] : published) {
        if (operations_before <= count) CHECK(std::ranges::count(tags, tag) == 1);
      }
      for (const std::string& tag : tags) {
        CHECK(checkpoint::read_text(left, directory / tag / "manifest.json") == manifests.at(tag));
        CHECK(checkpoint::verify_checkpoint(left, directory / tag).passed());
      }
      const auto latest = checkpoint::latest_tag(left, directory);
      CHECK((!latest || std::ranges::count(tags, *latest) == 1));
      ++crashes;
    }
  }
  std::printf("%d crashes after %zu operations\n", crashes, operations.size());
}

TEST_CASE("A load on any mesh detects a flipped bit at any position of split parameters") {
  const TemporaryFolder folder;
  save_to(folder / "");
  const MeshSizes readers[] = {{1, 1, 1}, {1, 2, 2}, {2, 1, 1}, {1, 2, 1}};
  const int64_t step = tries_all() ? 1009 : 9001;
  int flipped = 0;
  for (const auto& entry : fs::directory_iterator(folder / "global_step1")) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto size = static_cast<int64_t>(fs::file_size(entry.path()));
    for (int64_t at = flipped % 5 * 900; at < size; at += step) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      char byte = 0;
      file.seekg(at).get(byte);
      file.seekp(at).put(static_cast<char>(byte ^ 4)).flush();
      const MeshSizes& mesh = readers[flipped % 4];
      CAPTURE(entry.path(), at, describe(mesh));
      CHECK_THROWS_WITH(
          on_mesh(mesh, kConfig, [&](Engine& engine, Decoder&) { engine.load_checkpoint(folder / ""); }),
          Contains(entry.path().filename().string()) && Contains("another checksum"));
      file.seekp(at).put(byte);
      ++flipped;
    }
  }
  std::printf("%d flipped bits\n", flipped);
  CHECK(flipped > 10);
  CHECK_NOTHROW(
      on_mesh({1, 1, 1}, kConfig, [&](Engine& engine, Decoder&) { engine.load_checkpoint(folder / ""); }));
}

TEST_CASE("Hostile intervals and ranges of split parameters are refused by name, before anything is read") {
  const TemporaryFolder folder;
  save_to(folder / "");
  const std::string name = "layers.0.up.weight";  // split along its first dimension
  struct Way {
    std::string error;
    std::function<void(json&)> change;
  };
  const auto parts = [&](const json& changed) {
    return [=](json& value) { value["mesh"]["splits"][name]["parts"] = changed; };
  };
  const auto in_range = [&](const std::function<void(json&)>& change) {
    return [=](json& value) { change(range_in(file_with(value, name, 1), name)); };
  };
  const json whole = json::parse(read_file(folder / "global_step1/manifest.json"));
  const int64_t size = whole["parameters"][name]["shape"][0];
  const int64_t half = size / 2;
  const std::string split = "split of " + name + ": ";
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const std::vector<Way> ways = {
      {split + "index " + std::to_string(half - 1) + " is in two parts",
       parts({{{0, half}}, {{half - 1, half + 1}}})},
      {split + "index " + std::to_string(half - 1) + " is in no part",
       parts({{{0, half - 1}}, {{half, half}}})},
      {split + "index " + std::to_string(size - 1) + " is in no part",
       parts({{{0, half}}, {{half, half - 1}}})},
      {split + "a part goes beyond", parts({{{0, half}}, {{half, half + 1}}})},
      {split + "a part goes beyond", parts({{{0, half}, {half, kHuge}}, {{half, half}}})},
      {split + "a part goes beyond", parts({{{0, half}, {-1, 1}}, {{half, half}}})},
      {split + "expected a part for each of 2 tensor ranks",
       parts({{{0, half}}, {{half, half}}, {{size, 0}}})},
      {split + "the parameter has no such dimension",
       [&](json& value) { value["mesh"]["splits"][name]["dim"] = 2; }},
      {"a range of " + name + " that it does not have", in_range([](json& range) { range["part"] = 2; })},
      {"a range of " + name + " that it does not have",
       in_range([&](json& range) { range["begin"] = int64_t{1} << 59; })},
      {"\"numel\" is", in_range([&](json& range) { range["numel"] = kHuge; })},
      {"offset that is no multiple",
       in_range([](json& range) { range["offset"] = range["offset"].get<int>() + 1; })},
      {"goes beyond the file's end", in_range([](json& range) { range["offset"] = int64_t{1} << 40; })},
      {"exp_avg of " + name + " (tensor rank 1): element 0 is in no file", in_range([](json& range) {
         range["begin"] = 1;
         range["numel"] = range["numel"].get<int>() - 1;
       })},
      {"exp_avg of " + name + " (tensor rank 0): element 0 is in two files",
       in_range([](json& range) { range["part"] = 0; })},
      {"exp_avg of " + name + " (tensor rank 1): element 0 is in no file",
       [&](json& value) {
         json& ranges = file_with(value, name, 1)["ranges"];
         for (size_t index = 0; index < ranges.size(); ++index) {
           if (ranges[index]["parameter"] == name && ranges[index]["state"] == "exp_avg")
             ranges.erase(index--);
         }
       }},
  };
  size_t next = 0;
  for (const auto& [error, change] : ways) {
    json value = whole;
    change(value);
    value.erase("checksum");
    const std::string members = value.dump();
    value["checksum"] = in_hexadecimal(checkpoint::checksum_of(std::as_bytes(std::span(members))));
    folder.write("global_step1/manifest.json", value.dump());
    const std::vector<MeshSizes> readers = {{1, 1, 1}, {1, 2, 2}, {2, 1, 1}};
    check_refused(readers[next++ % readers.size()], folder / "", error);
  }
}

}  // namespace zerorun::testing
