// Runs `zerorun checkpoint export|import` as users do.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_reader.h"
#include "tests/launcher/command_folder.h"
#include "tests/launcher/small_checkpoints.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

}  // namespace

TEST_CASE("export writes safetensors files with the dtype and the shard size of the options") {
  const CommandFolder folder;
  save(folder / "out", {});
  SECTION("one file in fp32") {
    CHECK(folder.run("checkpoint export out model").exit_code == 0);
    SafetensorsReader reader(folder / "model/model.safetensors");
    CHECK(to_string(reader.tensors().at("h.weight")) == "F32 [600, 1000]");
    const auto bytes = reader.read("h.weight");
    const auto expected = ramp(1);
    CHECK(std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0);
    CHECK(reader.tensors().size() == 2);  // tied.weight is h.weight
  }
  SECTION("bf16 rounds to nearest even") {
    CHECK(folder.run("checkpoint export out model --dtype bf16").exit_code == 0);
    SafetensorsReader reader(folder / "model/model.safetensors");
    CHECK(reader.tensors().at("h.weight").dtype == "BF16");
    const auto bytes = reader.read("h.weight");
    for (size_t index = 0; index < kNumel; ++index) {
      uint16_t found;
      std::memcpy(&found, &bytes[index * 2], 2);
      const float back = std::bit_cast<float>(static_cast<uint32_t>(found) << 16);
      const float value = static_cast<float>(index + 1);
      const float step = std::exp2(std::floor(std::log2(value)) - 7);  // bf16 has 8 significant bits
      REQUIRE(back == std::nearbyint(value / step) * step);
    }
  }
  SECTION("shards with an index, which replace an earlier export") {
    fs::create_directories(folder / "model");
    folder.write("model/config.json", "{}");
    CHECK(folder.run("checkpoint export out model --max-shard-size 1MB").exit_code == 0);
    const json index = json::parse(read_file(folder / "model/model.safetensors.index.json"));
    CHECK(index["metadata"]["total_size"] == (kNumel + 2) * 4);
    CHECK(index["weight_map"] == json({{"h.bias", "model-00001-of-00002.safetensors"},
                                       {"h.weight", "model-00002-of-00002.safetensors"}}));
    SafetensorsReader reader(folder / "model/model-00002-of-00002.safetensors");
    const auto bytes = reader.read("h.weight");
    CHECK(std::memcmp(bytes.data(), ramp(1).data(), bytes.size()) == 0);
    CHECK(fs::exists(folder / "model/config.json"));
    CHECK(folder.run("checkpoint export out model").exit_code == 0);
    CHECK_FALSE(fs::exists(folder / "model/model.safetensors.index.json"));
    CHECK_FALSE(fs::exists(folder / "model/model-00001-of-00002.safetensors"));
  }
  SECTION("a model of another program is neither replaced nor removed") {
    const std::pair<std::string, std::string> others[] = {
        {"model.safetensors", "this file of another program would be replaced"},
        {"model-00001-of-00002.safetensors", "readers would mix this file of another program"},
        {"model.safetensors.index.json", "readers would mix this file of another program"}};
    fs::create_directories(folder / "model");
    for (const auto& [name, expected] : others) {
      folder.write("model/" + name, "other");
      const Outcome outcome = folder.run("checkpoint export out model");
      CHECK(outcome.exit_code == 2);
      CHECK_THAT(outcome.err, Contains("model/" + name + ": " + expected));
      CHECK(read_file(folder / "model" / name) == "other");
      CHECK(std::distance(fs::directory_iterator(folder / "model"), {}) == 1);
      fs::remove(folder / "model" / name);
    }
    CHECK(folder.run("checkpoint export out model").exit_code == 0);
    CHECK(folder.run("checkpoint export out model").exit_code == 0);
  }
  SECTION("a parameter that is transposed in memory is written row by row") {
    Publication publication(local_file_system(), folder / "strided", "t");
    Manifest manifest = manifest_of({.tag = "t"});
    manifest.parameters = {{"w", {{2, 3}, {1, 2}, true, false, {}}}};
    add_file(manifest, publication.folder(), "w.safetensors", range_of("w", 0, 6),
             std::vector<float>{0, 10, 1, 11, 2, 12});
    publication.publish(to_json(manifest), true);
    CHECK(folder.run("checkpoint export strided model").exit_code == 0);
    const auto bytes = SafetensorsReader(folder / "model/model.safetensors").read("w");
    const std::vector<float> expected = {0, 1, 2, 10, 11, 12};
    CHECK(std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0);
  }
  SECTION("damage leaves no file") {
    flip_bit(folder / "out/global_step5/b.safetensors", 100'000);
    const Outcome outcome = folder.run("checkpoint export out model");
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Contains("b.safetensors"));
    CHECK(fs::is_empty(folder / "model"));
  }
  CHECK_THAT(folder.run("checkpoint export out model --max-shard-size big").err, Contains("5GB"));
  CHECK(folder.run("checkpoint export out model --dtype int8").exit_code == 2);
}

TEST_CASE("import converts a checkpoint of DeepSpeed, and describes it") {
  const CommandFolder folder;
  const std::string source = ZERORUN_SOURCE_DIR "/tests/convert/data/bf16_s3_w2/checkpoint";
  const Outcome outcome = folder.run("checkpoint import '" + source + "' out --tag first");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out,
             Contains("DeepSpeed 0.19.8, stage 3, 2 ranks, bf16, AdamW, after 5 optimizer steps") &&
                 Contains("out/first: 28 parameters"));
  CHECK(folder.run("checkpoint verify out").exit_code == 0);
  const json inspected = json::parse(folder.run("checkpoint inspect out --json").out);
  CHECK(inspected["parameters"]["transformer.wte.weight"]["aliases"] == json({"lm_head.weight"}));
  CHECK(inspected["client_state"] == json({{"note", "step5"}, {"step", 5}}));
  CHECK(folder.run("checkpoint import '" + source + "/global_step5/.' by_folder").exit_code == 0);
  CHECK(tags_in(folder / "by_folder") == std::vector<std::string>{"global_step5"});
  const Outcome again = folder.run("checkpoint import '" + source + "' out --tag first");
  CHECK(again.exit_code == 2);
  CHECK_THAT(again.err, Contains("out/first exists") && Contains("--replace"));
  CHECK(folder.run("checkpoint import '" + source + "' out --tag first --replace").exit_code == 0);
  fs::copy(source, folder / "both", fs::copy_options::recursive);
  const std::string latest = read_file(folder / "both/latest");
  for (const char* from : {"both", "both/global_step5"}) {
    const Outcome onto_itself = folder.run(std::string("checkpoint import ") + from + " both/. --tag zr");
    CHECK(onto_itself.exit_code == 2);
    CHECK_THAT(onto_itself.err, Contains("has the checkpoint that is imported"));
  }
  CHECK(read_file(folder / "both/latest") == latest);
  const Outcome none = folder.run("checkpoint import . out2");
  CHECK(none.exit_code == 2);
  CHECK_THAT(none.err, Contains("not a checkpoint of DeepSpeed"));
  CHECK_FALSE(fs::exists(folder / "out2"));
}

TEST_CASE("An import of an earlier version is read, and equals one of this version") {
  const CommandFolder folder;
  const std::string data = ZERORUN_SOURCE_DIR "/tests/";
  CHECK(
      folder.run("checkpoint import '" + data + "convert/data/frozen_bf16_s1_w2/checkpoint' out").exit_code ==
      0);
  const std::string old = "'" + data + "engine/data/checkpoints_1/imported_bf16_stage1'";
  CHECK(folder.run("checkpoint verify " + old).exit_code == 0);
  const Outcome diff = folder.run("checkpoint diff out " + old);
  CHECK(diff.exit_code == 0);
  CHECK_THAT(diff.out, Contains("no difference"));
}

}  // namespace zerorun::testing
