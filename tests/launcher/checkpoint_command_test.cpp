// Runs `zerorun checkpoint list|inspect|verify|diff|prune` as users do, on small checkpoints whose values are
// known.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/inventory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/publication.h"
#include "tests/launcher/command_folder.h"
#include "tests/launcher/small_checkpoints.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

void flip_bit(const fs::path& file, size_t at) {
  std::string bytes = read_file(file);
  bytes.at(at) = static_cast<char>(bytes[at] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
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
