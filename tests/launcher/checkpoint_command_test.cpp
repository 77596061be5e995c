// Runs `zerorun checkpoint list|inspect|verify|diff|prune|export|import` as users do, on small checkpoints
// whose values are known.
#include <sys/stat.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/inventory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/publication.h"
#include "checkpoint/safetensors_reader.h"
#include "checkpoint/state_file.h"
#include "tests/launcher/command_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

constexpr int64_t kNumel = 600'000;  // elements of h.weight: more than 2 MiB

std::vector<float> ramp(float first) {
  std::vector<float> values(kNumel);
  std::iota(values.begin(), values.end(), first);
  return values;
}

struct Content {
  std::string tag = "global_step5";
  int64_t generation = 5;
  std::vector<float> weight = ramp(1);
  std::vector<float> bias = {1.5F, -2.5F};
  int64_t split = 300'000;        // elements of h.weight in the first file
  std::string link_bias_to = "";  // the tag whose bias.safetensors is linked; empty: a new file is written
};

StateRange range_of(const std::string& parameter, int64_t begin, int64_t numel) {
  StateRange range;
  range.parameter = parameter;
  range.state = "value";
  range.dtype = "F32";
  range.begin = begin;
  range.numel = numel;
  return range;
}

void add_file(Manifest& manifest, const fs::path& folder, const std::string& name, const StateRange& range,
              std::span<const float> values) {
  FileToWrite file;
  file.name = name;
  RangeToWrite& added = file.ranges.emplace_back();
  added.range = range;
  added.source = std::make_shared<MemorySnapshot>(std::as_bytes(values));
  manifest.files[name] = write_state_file(local_file_system(), folder, file);
}

Manifest manifest_of(const Content& content) {
  Manifest manifest;
  manifest.tag = content.tag;
  manifest.generation = content.generation;
  manifest.world_size = 1;
  manifest.precision = "fp32";
  manifest.optimizer = "SGD";
  manifest.parameters = {{"h.weight", {{600, 1000}, {1000, 1}, true, false, {"tied.weight"}}},
                         {"h.bias", {{2}, {1}, true, false, {}}}};
  manifest.numbers = {{{"steps.global", int64_t{7}}, {"group 0.lr", 0.25}}};
  manifest.client_state = R"({"epoch":3})";
  return manifest;
}

// A checkpoint of two parameters: h.weight in two files, h.bias in one.
void save(const fs::path& directory, const Content& content) {
  Publication publication(local_file_system(), directory, content.tag);
  Manifest manifest = manifest_of(content);
  manifest.saving = publication.saving();
  const std::span<const float> weight(content.weight);
  const fs::path folder = publication.folder();
  add_file(manifest, folder, "a.safetensors", range_of("h.weight", 0, content.split),
           weight.first(static_cast<size_t>(content.split)));
  add_file(manifest, folder, "b.safetensors", range_of("h.weight", content.split, kNumel - content.split),
           weight.subspan(static_cast<size_t>(content.split)));
  add_file(manifest, folder, "bias.safetensors", range_of("h.bias", 0, 2), content.bias);
  if (!content.link_bias_to.empty()) {
    fs::remove(folder / "bias.safetensors");
    fs::create_hard_link(directory / content.link_bias_to / "bias.safetensors", folder / "bias.safetensors");
  }
  publication.publish(to_json(manifest), true);
}

void flip_bit(const fs::path& file, size_t at) {
  std::string bytes = read_file(file);
  bytes.at(at) = static_cast<char>(bytes[at] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
}

std::vector<std::string> tags_in(const fs::path& directory) {
  return published_tags(local_file_system(), directory);
}

}  // namespace

TEST_CASE("list shows the checkpoints of a folder, newest first, and what is unfinished or damaged") {
  const CommandFolder folder;
  save(folder / "out", {.tag = "global_step5", .generation = 5});
  save(folder / "out", {.tag = "best", .generation = 30});
  save(folder / "out", {.tag = "global_step20", .generation = 20});
  fs::create_directories(folder / "out/.global_step40.partial");
  fs::create_directories(folder / "out/tensorboard");
  fs::create_directories(folder / "out/broken");
  folder.write("out/broken/manifest.json", "{");
  const json list = json::parse(folder.run("checkpoint list out --json").out)["checkpoints"];
  REQUIRE(list.size() == 5);
  CHECK(list[0]["tag"] == "global_step20");  // saved last
  CHECK(list[0]["latest"] == true);
  CHECK(list[0]["bytes"].get<int64_t>() > kNumel * 4);
  CHECK(list[1]["tag"] == "best");
  CHECK(list[1]["step"] == 30);
  CHECK(list[1]["latest"] == false);
  CHECK(list[2]["tag"] == "global_step5");
  CHECK(list[3]["state"] == "damaged");
  CHECK_THAT(list[3]["problem"].get<std::string>(), Contains("broken/manifest.json"));
  CHECK(list[4]["tag"] == "global_step40");
  CHECK(list[4]["state"] == "unfinished");
  const Outcome outcome = folder.run("checkpoint list out");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Contains("global_step20  latest  20  ") &&
                              Contains("fp32, stage 0, 1 rank, SGD\n") && Contains("unfinished: "));
  CHECK_THAT(outcome.out, !Contains("tensorboard"));
  fs::create_directories(folder / "empty");
  CHECK_THAT(folder.run("checkpoint list empty").out, Contains("no checkpoints"));
  fs::create_directory_symlink("out/best", folder / "link");
  CHECK_THAT(folder.run("checkpoint list link").err, Contains("is a checkpoint itself"));
}

TEST_CASE("names of folders do not reach the terminal as control characters, and pipes are not waited for") {
  const CommandFolder folder;
  const std::string odd = "a\x1b]0;owned\x07";
  fs::create_directories(folder / ("out/" + odd));
  folder.write("out/" + odd + "/manifest.json", "{}");
  const Outcome list = folder.run("checkpoint list out");
  CHECK_THAT(list.out + list.err, Contains("a?]0;owned?") && Contains("damaged") && !Contains("\x1b"));
  fs::remove(folder / ("out/" + odd + "/manifest.json"));
  REQUIRE(::mkfifo((folder / ("out/" + odd + "/manifest.json")).c_str(), 0600) == 0);
  for (const char* command : {"list out", "verify out/a*", "inspect out/a*", "export out/a* hf"})
    CHECK_THAT(folder.run(std::string("checkpoint ") + command + " 2>&1 | cat").out,
               Contains("it is no regular file"));
}

TEST_CASE("inspect shows counters, files, and the parameters that a pattern names") {
  const CommandFolder folder;
  save(folder / "out", {});
  const json all = json::parse(folder.run("checkpoint inspect out --json").out);
  CHECK(all["step"] == 5);
  CHECK(all["numbers"] == json({{"steps.global", 7}, {"group 0.lr", 0.25}}));
  CHECK(all["client_state"] == json({{"epoch", 3}}));
  CHECK(all["files"].size() == 3);
  CHECK(all["parameters"]["h.weight"]["shape"] == json({600, 1000}));
  CHECK(all["parameters"]["h.weight"]["states"] == json({{"value", "F32"}}));
  const Outcome one = folder.run("checkpoint inspect out/global_step5 --parameter '*.bias'");
  CHECK_THAT(one.out, Contains("h.bias  [2]") && Contains("value F32 8 B") && !Contains("h.weight"));
  const Outcome none = folder.run("checkpoint inspect out --parameter nothing");
  CHECK(none.exit_code == 2);
  CHECK_THAT(none.err, Contains("no parameter name matches \"nothing\""));
}

TEST_CASE("verify passes a whole checkpoint and names each damaged file, block and parameter") {
  const CommandFolder folder;
  save(folder / "out", {});
  const fs::path tag = folder / "out/global_step5";
  const Outcome whole = folder.run("checkpoint verify out");
  CHECK(whole.exit_code == 0);
  CHECK_THAT(whole.out, Contains("whole: 3 files"));
  const auto bytes = fs::file_size(tag / "a.safetensors") + fs::file_size(tag / "b.safetensors") +
                     fs::file_size(tag / "bias.safetensors");
  CHECK(json::parse(folder.run("checkpoint verify out --json").out)["checkpoints"][0]["bytes"] == bytes);
  std::string expected;
  SECTION("a bit in the second block") {
    flip_bit(tag / "a.safetensors", (1 << 20) + 17);
    expected = "a.safetensors: block 1 (1 MiB) differs from its checksum: h.weight (value)";
  }
  SECTION("a bit of a header") {
    flip_bit(tag / "bias.safetensors", 9);
    expected = "bias.safetensors: block 0 (1 MiB) differs";
  }
  SECTION("the last byte of padding") {
    flip_bit(tag / "b.safetensors", fs::file_size(tag / "b.safetensors") - 1);
    expected = "b.safetensors: block 1 (1 MiB) differs";
  }
  SECTION("a file is cut off") {
    fs::resize_file(tag / "b.safetensors", 4096);
    expected = "b.safetensors: has 4096 bytes, the manifest says";
  }
  SECTION("a file is missing") {
    fs::remove(tag / "b.safetensors");
    expected = "b.safetensors";
  }
  SECTION("elements are in no file") {
    Manifest manifest = parse_manifest(read_file(tag / "manifest.json"), "test");
    manifest.files.erase("b.safetensors");
    folder.write("out/global_step5/manifest.json", to_json(manifest));
    expected = "value of h.weight: element 300000 is in no file";
  }
  SECTION("elements are in two files") {
    Manifest manifest = parse_manifest(read_file(tag / "manifest.json"), "test");
    manifest.files["b.safetensors"].ranges[0].begin -= 1;
    folder.write("out/global_step5/manifest.json", to_json(manifest));
    expected = "value of h.weight: element 299999 is in two files";
  }
  SECTION("a parameter is in no file") {
    Manifest manifest = parse_manifest(read_file(tag / "manifest.json"), "test");
    manifest.files.erase("bias.safetensors");
    folder.write("out/global_step5/manifest.json", to_json(manifest));
    expected = "h.bias is in no file";
  }
  const Outcome damaged = folder.run("checkpoint verify out");
  CHECK(damaged.exit_code == 1);
  CHECK_THAT(damaged.out, Contains(expected) && Contains("damaged: "));
  const json report = json::parse(folder.run("checkpoint verify out --json").out);
  CHECK(report["whole"] == false);
  CHECK(report["checkpoints"][0]["damages"].size() == 1);
}

TEST_CASE("An edited manifest counts as damage, and the next checkpoint is still verified") {
  const CommandFolder folder;
  save(folder / "out", {});
  std::string text = read_file(folder / "out/global_step5/manifest.json");
  text.replace(text.find("\"SGD\""), 5, "\"SGE\"");
  folder.write("out/global_step5/manifest.json", text);
  save(folder / "other", {});
  const Outcome outcome = folder.run("checkpoint verify out other");
  CHECK(outcome.exit_code == 1);
  CHECK_THAT(outcome.out,
             Contains("manifest.json") && Contains("another checksum") && Contains("other/global_step5"));
}

TEST_CASE("A hostile manifest is an error, not a crash") {
  const CommandFolder folder;
  save(folder / "out", {});
  const std::string manifest = "out/global_step5/manifest.json";
  folder.write(manifest, "{\"a\": " + std::string(2'000'000, '[') + std::string(2'000'000, ']') + "}");
  CHECK_THAT(folder.run("checkpoint inspect out").err, Contains("nested more than 1000 deep"));
  Manifest none = manifest_of({});
  none.world_size = 0;
  none.numbers.clear();
  folder.write(manifest, to_json(none));
  CHECK_THAT(folder.run("checkpoint inspect out").err, Contains("\"world_size\": expected 1 or more"));
}

TEST_CASE("diff compares parameters however files divide them, and counts elements that differ") {
  const CommandFolder folder;
  save(folder / "a", {});
  save(folder / "b", {.split = 123'457});
  const Outcome equal = folder.run("checkpoint diff a b");
  CHECK(equal.exit_code == 0);
  CHECK(equal.out == "no difference in 2 states\n");
  Content other{.generation = 6};
  other.weight[7] += 0.5F;
  other.weight[599'999] -= 2;
  other.bias[0] = -other.bias[0];
  save(folder / "c", other);
  const json report = json::parse(folder.run("checkpoint diff a c --json").out);
  CHECK(folder.run("checkpoint diff a c").exit_code == 1);
  CHECK(report["equal"] == false);
  REQUIRE(report["settings"].size() == 1);
  CHECK(report["settings"][0] == json({{"name", "generation"}, {"first", "5"}, {"second", "6"}}));
  REQUIRE(report["states"].size() == 2);
  CHECK(report["states"][0]["parameter"] == "h.bias");
  CHECK(report["states"][0]["differing"] == 1);
  CHECK(report["states"][0]["largest_difference"] == 3.0);
  CHECK(report["states"][1]["differing"] == 2);
  CHECK(report["states"][1]["elements"] == kNumel);
  CHECK(report["states"][1]["largest_difference"] == 2.0);
  CHECK_THAT(folder.run("checkpoint diff a c").out,
             Contains("2 of 600000 elements differ, largest difference 2"));
  Manifest tied = parse_manifest(read_file(folder / "b/global_step5/manifest.json"), "b");
  tied.parameters["h.bias"].aliases = {"g.bias"};
  tied.window =
      SavedWindow{.micro_steps = 1, .accumulation_steps = 4, .dtype = "fp32", .communication = "fp32"};
  folder.write("b/global_step5/manifest.json", to_json(tied));
  CHECK_THAT(folder.run("checkpoint diff a b").out,
             Contains("tied names none and g.bias") && Contains("1 of 4 micro-steps"));
}

TEST_CASE("prune neither counts damaged checkpoints nor touches linked ones or those being written") {
  const CommandFolder folder;
  const fs::path out = folder / "out";
  for (const int step : {1, 2, 3, 4, 5, 6})
    save(out, {.tag = "global_step" + std::to_string(step),
               .generation = 4});  // all equal generations, as after skipped steps
  folder.write("out/latest", "global_step6\n");
  fs::remove(out / "global_step6/b.safetensors");
  folder.write("out/global_step5/bias.safetensors", "short");
  fs::create_directory_symlink("global_step2", out / "best");
  fs::create_directories(out / ".global_step1.partial");
  const Outcome outcome = folder.run("checkpoint prune out --keep 1");
  CHECK(outcome.exit_code == 0);
  CHECK(tags_in(out) == std::vector<std::string>{"best", "global_step1", "global_step2", "global_step4",
                                                 "global_step5", "global_step6"});
  CHECK(folder.run("checkpoint verify out/best").exit_code == 0);
  const json list = json::parse(folder.run("checkpoint list out --json").out)["checkpoints"];
  for (const json& tag : list) {
    if (tag["tag"] != "global_step6" && tag["tag"] != "global_step5") continue;
    CHECK(tag["state"] == "damaged");
    CHECK_THAT(tag["problem"].get<std::string>(), Contains("safetensors"));
  }
}

TEST_CASE("prune keeps the newest checkpoints, latest, multiples of K, and tags that the program named") {
  const CommandFolder folder;
  const fs::path out = folder / "out";
  save(out, {.tag = "best", .generation = 1});
  for (const int step : {10, 20, 30, 40, 50}) {
    Content content{.tag = "global_step" + std::to_string(step), .generation = step};
    if (step > 10) content.link_bias_to = "global_step10";
    save(out, content);
  }
  folder.write("out/latest", "global_step20\n");
  const std::vector<std::string> before = tags_in(out);
  const json plan = json::parse(folder.run("checkpoint prune out --keep 2 --dry-run --json").out);
  CHECK(plan["removed"] == json({"global_step30", "global_step10"}));
  CHECK(plan["kept"].size() == 4);
  CHECK(tags_in(out) == before);
  // bias.safetensors is not freed, because the checkpoints that remain link to the same file.
  int64_t freed = 0;
  for (const char* tag : {"global_step10", "global_step30"}) {
    for (const char* file : {"a.safetensors", "b.safetensors", "manifest.json"})
      freed += static_cast<int64_t>(fs::file_size(out / tag / file));
  }
  CHECK(plan["freed_bytes"] == freed);

  CHECK(json::parse(
            folder.run("checkpoint prune out --keep 1 --keep-every 30 --dry-run --json").out)["removed"] ==
        json({"global_step40", "global_step10"}));
  const Outcome outcome = folder.run("checkpoint prune out --keep 2");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Contains("removed global_step10\n") && Contains("2 checkpoints removed"));
  CHECK(tags_in(out) == std::vector<std::string>{"best", "global_step20", "global_step40", "global_step50"});
  CHECK(folder.run("checkpoint verify out/global_step20 out/global_step40").exit_code == 0);
  CHECK_FALSE(fs::exists(out / ".global_step10.partial"));
  CHECK_THAT(folder.run("checkpoint prune out").err, Contains("--keep"));
  CHECK(folder.run("checkpoint prune out --keep 0").exit_code == 2);
}

TEST_CASE("A checkpoint that is saved anew while prune is at work stays, and the others are removed") {
  const CommandFolder folder;
  const fs::path out = folder / "out";
  for (const int step : {1, 2, 3, 4}) save(out, {.tag = "global_step" + std::to_string(step)});
  PrunePlan plan = plan_prune(local_file_system(), out, {.keep = 1});
  REQUIRE(plan.removed.size() == 3);
  const int64_t freed = plan.freed_bytes;
  save(out, {.tag = "global_step2"});
  CHECK_FALSE(prune(local_file_system(), out, plan));
  CHECK(tags_in(out) == std::vector<std::string>{"global_step2", "global_step4"});
  CHECK(plan.removed.size() == 2);
  CHECK(plan.kept.back().tag == "global_step2");
  CHECK(plan.freed_bytes > freed / 2);
  CHECK(plan.freed_bytes < freed);
}

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

TEST_CASE("prune removes nothing while latest names no checkpoint, and no folder that holds more") {
  const CommandFolder folder;
  const fs::path out = folder / "out";
  for (const int step : {1, 2, 3})
    save(out, {.tag = "global_step" + std::to_string(step), .generation = step});
  folder.write("out/latest", "global_step7");
  const Outcome refused = folder.run("checkpoint prune out --keep 1");
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, Contains("latest names global_step7, which is no checkpoint of the folder"));
  CHECK(tags_in(out).size() == 3);
  folder.write("out/latest", " global_step1\r\n");
  folder.write("out/global_step2/notes", "precious");
  const Outcome outcome = folder.run("checkpoint prune out --keep 1");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.err, Contains("global_step2 holds notes, which is no part of the checkpoint"));
  CHECK(tags_in(out) == std::vector<std::string>{"global_step1", "global_step2", "global_step3"});
  CHECK_THAT(folder.run("checkpoint list out/global_step1").err, Contains("is a checkpoint itself"));
  save(out, {.tag = "global_step0", .generation = 0});  // saved last, though its step is the lowest
  CHECK(json::parse(folder.run("checkpoint list out --json").out)["checkpoints"][0]["tag"] == "global_step0");
  CHECK(folder.run("checkpoint prune out --keep 1").exit_code == 0);
  CHECK(tags_in(out) == std::vector<std::string>{"global_step0", "global_step2"});
}

TEST_CASE("Mistakes on the command line of checkpoint name the remedy") {
  const CommandFolder folder;
  save(folder / "out", {});
  CHECK_THAT(folder.run("checkpoint lst out").err, Contains("expected list, inspect, verify"));
  CHECK(folder.run("checkpoint lst out").exit_code == 2);
  CHECK_THAT(folder.run("checkpoint inspect out --tag global_step6").err,
             Contains("no tag global_step6; its tags are global_step5"));
  CHECK_THAT(folder.run("checkpoint inspect nowhere").err, Contains("nowhere: cannot be read"));
  CHECK_THAT(folder.run("checkpoint diff out").err,
             Contains("CHECKPOINTS: expected at least 2, found 1 (see zerorun checkpoint --help)"));
  CHECK_THAT(folder.run("checkpoint list out out").err, Contains("FOLDER: expected at most 1, found 2"));
  const Outcome help = folder.run("checkpoint --help");
  CHECK(help.exit_code == 0);
  CHECK_THAT(help.out, Contains("prune") && Contains("Exit code"));
  CHECK_THAT(folder.run("--help").out, Contains("zerorun checkpoint --help"));
}

}  // namespace zerorun::testing
