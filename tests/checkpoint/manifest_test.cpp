// Tests that a manifest is read as it was written, and that error messages name the faulty entry.
#include "checkpoint/manifest.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "base/hexadecimal.h"
#include "checkpoint/checksums.h"
#include "checkpoint/json_text.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

Manifest some_manifest() {
  Manifest manifest{.tag = "global_step7",
                    .saving = 12,
                    .generation = 6,
                    .world_size = 2,
                    .stage = 3,
                    .precision = "bf16",
                    .optimizer = "AdamW",
                    .parameters = {{"w", {{2, 3}, {1, 2}, true, false, {"v"}, 1}}, {"b", {{}, {}, false}}},
                    .files = {},
                    .numbers = {},
                    .client_state = R"({"step":5,"epoch":[1,null,{"z":1,"a":2}]})"};
  manifest.files["f"] = {.bytes = 5000,
                         .checksums = {0xfedcba9876543210},
                         .ranges = {{"w", "exp_avg", "F32", 2, 4, 4096}, {"b", "value", "BF16", 0, 1, 4160}}};
  manifest.numbers = {{{"steps.global", int64_t{7}},
                       {"group 0.lr", 0.1},
                       {"generator.cpu", std::vector<uint8_t>{0, 255, 16}}},
                      {{"scale", 65536.0}, {"small", std::numeric_limits<double>::denorm_min()}}};
  manifest.window = {.micro_steps = 1,
                     .accumulation_steps = 4,
                     .is_summed = true,
                     .dtype = "BF16",
                     .communication = "bf16",
                     .factor = 0.5,
                     .loss_scale = 8};
  return manifest;
}

// Of data 1 x tensor 2: `w` is split along its second dimension.
Manifest manifest_of_mesh() {
  Manifest manifest = some_manifest();
  manifest.mesh = {.data = 1, .tensor = 2, .pipeline = 1};
  manifest.parameters.at("w").split = {.dim = 1, .parts = {{{0, 1}, {2, 1}}, {{1, 1}}}};
  manifest.files.at("f").ranges = {{"w", "exp_avg", "F32", 1, 3, 4096, 0},
                                   {"w", "exp_avg", "F32", 0, 2, 4160, 1},
                                   {"b", "value", "BF16", 0, 1, 4224}};
  return manifest;
}

// The text of `value` with a checksum that fits.
std::string with_checksum(json value) {
  value.erase("checksum");
  const std::string members = value.dump();
  value["checksum"] = in_hexadecimal(checksum_of(std::as_bytes(std::span(members))));
  return value.dump();
}

std::string error_of(const std::function<void(json&)>& change, const Manifest& manifest = some_manifest()) {
  json value = json::parse(to_json(manifest));
  change(value);
  return user_error([&] { parse_manifest(with_checksum(value), "m.json"); });
}

}  // namespace

TEST_CASE("A manifest is read as it was written") {
  for (const Manifest& written : {some_manifest(), manifest_of_mesh()}) {
    const Manifest read = parse_manifest(to_json(written), "m.json");
    CHECK(read.tag == written.tag);
    CHECK(read.saving == written.saving);
    CHECK(read.generation == written.generation);
    CHECK(read.world_size == written.world_size);
    CHECK(read.mesh == written.mesh);
    CHECK(read.stage == written.stage);
    CHECK(read.precision == written.precision);
    CHECK(read.optimizer == written.optimizer);
    CHECK(read.parameters == written.parameters);
    CHECK(read.files == written.files);
    CHECK(read.numbers == written.numbers);
    CHECK(read.window == written.window);
    CHECK(read.client_state == written.client_state);
  }
}

TEST_CASE("The schema of manifests accepts written manifests, and none with a missing or additional key") {
  const json schema_text =
      json::parse(read_file(ZERORUN_SOURCE_DIR "/schemas/checkpoint_manifest.schema.json"));
  valijson::Schema schema;
  valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(schema_text), schema);
  auto accepts = [&](const json& value) {
    valijson::Validator validator;
    return validator.validate(schema, valijson::adapters::NlohmannJsonAdapter(value), nullptr);
  };
  json value = json::parse(to_json(some_manifest()));
  CHECK(accepts(value));
  Manifest without_window = some_manifest();
  without_window.window.reset();
  CHECK(accepts(json::parse(to_json(without_window))));
  const json with_mesh = json::parse(to_json(manifest_of_mesh()));
  CHECK(accepts(with_mesh));
  for (const char* path :
       {"", "/parameters/w", "/files/f", "/files/f/ranges/0", "/window", "/mesh", "/mesh/splits/w"}) {
    const json::json_pointer place(path);
    CAPTURE(path);
    const json& whole = value.contains(place) ? value : with_mesh;
    json more = whole;
    more[place]["more"] = 1;
    CHECK(!accepts(more));
    for (const auto& [key, member] : whole[place].items()) {
      CAPTURE(key);
      json less = whole;
      less[place].erase(key);
      CHECK(!accepts(less));
    }
  }
}

TEST_CASE("A reader skips the members that the manifest declares skippable") {
  const auto read = [](const char* skippable) {
    return error_of([&](json& value) {
      value["skippable"] = {skippable};
      value["data_position"] = {1, 2};
      value["files"]["f"]["ranges"][0]["sum_group"] = 1;
    });
  };
  CHECK_THAT(read("data_position"), Contains("file f: \"sum_group\""));
  CHECK_THAT(read("ranges.sum_group"), Contains("m.json: \"data_position\""));
  CHECK(error_of([](json& value) {
          value["skippable"] = {"ranges.sum_group", "parameters.more", "files.more", "window.more"};
          value["files"]["f"]["ranges"][0]["sum_group"] = 1;
          for (const char* path : {"/parameters/w", "/files/f", "/window"})
            value[json::json_pointer(path)]["more"] = 1;
        }) == "no error");
}

TEST_CASE("A manifest of a mesh is read only if its parts fit the mesh and the parameters") {
  const auto error = [](const char* path, const json& changed) {
    return error_of([&](json& value) { value[json::json_pointer(path)] = changed; }, manifest_of_mesh());
  };
  CHECK_THAT(error("/mesh/tensor", 3), Contains("m.json: mesh: a mesh of data 1 x tensor 3 x pipeline 1"));
  CHECK_THAT(error("/mesh/hosts", 3), Contains("m.json: mesh: \"hosts\""));
  CHECK_THAT(error("/mesh/splits/u", json::object()), Contains("split of u: there is no such parameter"));
  for (const json& parts : {json({{{0, 3}}}), json({{{0, 2}}, {{1, 2}}}), json({{{0, 1}}, {{2, 1}}}),
                            json({{{0, 4}, {4, -1}}, json::array()})})
    CHECK_THAT(error("/mesh/splits/w/parts", parts), Contains("split of w: "));
  CHECK_THAT(error("/mesh/splits/w/dim", 2), Contains("split of w: "));
  // A part that is larger than the tensor rank's, of no tensor rank, or of none at all.
  for (const char* path : {"/files/f/ranges/1/numel", "/files/f/ranges/1/part"})
    CHECK_THAT(error(path, 3), Contains("a range of w that it does not have"));
  const auto without = [](const char* path, const char* member) {
    return error_of([&](json& value) { value[json::json_pointer(path)].erase(member); }, manifest_of_mesh());
  };
  CHECK_THAT(without("/files/f/ranges/1", "part"), Contains("a range of w that it does not have"));
  CHECK_THAT(without("", "mesh"), Contains("a range of w that it does not have"));
}

TEST_CASE("A manifest of version 1 is read, and has no saving number") {
  json value = json::parse(to_json(some_manifest()));
  for (const char* key : {"skippable", "saving"}) value.erase(key);
  for (const char* name : {"w", "b"}) value["parameters"][name].erase("group");
  value["version"] = 1;
  const Manifest read = parse_manifest(with_checksum(value), "m.json");
  CHECK(read.saving == 0);
  CHECK(read.files == some_manifest().files);
  CHECK(read.parameters.at("w").group == -1);
  value["saving"] = 3;
  CHECK_THAT(user_error([&] { parse_manifest(with_checksum(value), "m.json"); }), Contains("\"saving\""));
}

TEST_CASE(
    "The outline of a manifest names its files, even if the manifest is damaged or of another version") {
  json value = json::parse(to_json(some_manifest()));
  value["version"] = 99;
  value["files"]["../f"] = json::object();
  const auto outline = outline_of(value.dump());
  REQUIRE(outline);
  CHECK(outline->files == std::set<std::string>{"f"});
  CHECK(outline->saving == 12);
  for (const char* other : {"", "{}", "[]", "{\"format\": 1}", "{\"format\": \"zerorun checkpoint\"}"})
    CHECK(!outline_of(other));
  CHECK(!outline_of("{\"a\": " + std::string(2000, '[') + std::string(2000, ']') + "}"));
}

TEST_CASE("The parts that the ranks write are joined into one manifest") {
  const Manifest whole = some_manifest();
  Manifest joined = whole;
  joined.files.clear();
  joined.numbers.clear();
  add_part(joined, to_json({{"f", whole.files.at("f")}}, whole.numbers[0]), "rank 0");
  add_part(joined, to_json({}, whole.numbers[1]), "rank 1");
  CHECK(joined.files == whole.files);
  CHECK(joined.numbers == whole.numbers);
}

TEST_CASE("A change of any digit of a manifest is detected") {
  const std::string text = to_json(some_manifest());
  int changed = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] < '0' || text[at] > '9') continue;
    std::string damaged = text;
    damaged[at] = damaged[at] == '7' ? '6' : '7';
    // The changed digit may be beyond the precision of float64. Then the manifest has the same numbers, and
    // is accepted.
    std::string same = "refused";
    user_error([&] { same = to_json(parse_manifest(damaged, "m.json")); });
    CHECK((same == "refused" || same == text));
    changed += same == "refused";
  }
  CHECK(changed > 60);
}

TEST_CASE("A client state that would not come back as it is is refused with the place of the value") {
  const auto refusal = [](const std::string& text) {
    return user_error([&] { check_json(text, "client_state"); });
  };
  for (const char* kept :
       {"null", "[1, -9223372036854775808, 18446744073709551615]", R"({"a": {"a": 1.5e300}})",
        R"([{"a": 1}, {"a": 2}])", R"({"lr": 0.1, "name": "\u00e9"})"}) {
    CAPTURE(kept);
    CHECK(refusal(kept) == "no error");
  }
  CHECK_THAT(refusal(R"({"rng": {"state": [1, 323726261719206589602543583274561722519]}})"),
             Contains("client_state.rng.state[]") && Contains("more than 64 bits, 3237262617192065896") &&
                 Contains("write it as a text"));
  CHECK_THAT(refusal("-9223372036854775809"), Contains("client_state is an integer"));
  CHECK_THAT(refusal(R"([{"a": {"step": 1, "other": 2, "step": 3}}])"),
             Contains("client_state[].a has the key \"step\" twice"));
  CHECK_THAT(refusal(R"({"a": 1)"), Contains("client_state is not JSON"));
  CHECK_THAT(refusal("{\"a\": \"\xff\"}"), Contains("client_state is not JSON"));
  CHECK_THAT(refusal(std::string(2000, '[') + std::string(2000, ']')),
             Contains("nested more than 1000 deep"));
  CHECK_THAT(refusal(std::string(kLongestJson + 1, ' ')),
             Contains("client_state has 536870913 bytes as JSON, expected at most 536870912"));
}

TEST_CASE("Every client state that may be saved can be read, as it was") {
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair(R"({"b":1,"a":)", "}")}) {
    std::string text = "-0.5";
    for (int depth = 0; depth < kDeepestJson; ++depth) text = open + text + close;
    REQUIRE_NOTHROW(check_json(text, "client_state"));
    Manifest manifest = some_manifest();
    manifest.client_state = text;
    const Manifest read = parse_manifest(to_json(manifest), "m.json");
    CHECK(read.client_state == text);
    CHECK(read.checksum.size() == 16);
  }
}

TEST_CASE("A client state with many keys is written and read in a time that grows with its size") {
  Manifest manifest = some_manifest();
  manifest.client_state = "{";
  for (int key = 0; key < 200'000; ++key)  // in an order of its own
    manifest.client_state +=
        (key > 0 ? ",\"" : "\"") + std::to_string(key * 7919 % 200'000) + "\":" + std::to_string(key);
  manifest.client_state += "}";
  const auto begin = std::chrono::steady_clock::now();
  CHECK(parse_manifest(to_json(manifest), "m.json").client_state == manifest.client_state);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));  // by squares: minutes
}

TEST_CASE("Errors say what is wrong with a manifest") {
  CHECK_THAT(user_error([] { parse_manifest("{", "m.json"); }), Contains("m.json"));
  CHECK_THAT(error_of([](json& value) { value["version"] = 3; }),
             Contains("version 1 to 2, found") && Contains("version 3"));
  CHECK_THAT(error_of([](json& value) { value.erase("stage"); }), Contains("\"stage\" is missing"));
  CHECK_THAT(error_of([](json& value) { value["files"]["f"]["more"] = 1; }),
             Contains("\"more\"") && Contains("does not know"));
  CHECK_THAT(error_of([](json& value) { value["files"]["../f"] = value["files"]["f"]; }),
             Contains("the name of a file"));
  CHECK_THAT(error_of([](json& value) { value["numbers"].erase(1); }),
             Contains("numbers of 1 ranks, expected 2"));
  CHECK_THAT(error_of([](json& value) { value["files"]["f"]["ranges"][0]["begin"] = 3; }),
             Contains("a range of w that it does not have"));
  CHECK_THAT(error_of([](json& value) { value["tag"] = 1; }), Contains("\"tag\""));
  CHECK_THAT(error_of([](json& value) { value["files"]["f"]["bytes"] = 2'000'000; }), Contains("each MiB"));
  CHECK_THAT(error_of([](json& value) { value["files"]["f"]["bytes"] = -1; }),
             Contains("is -1, expected a count"));
  CHECK_THAT(error_of([](json& value) { value["files"]["f"]["ranges"][0]["numel"] = 1000; }),
             Contains("beyond the file's end"));
  CHECK_THAT(error_of([](json& value) { value["files"]["f"]["ranges"][0]["dtype"] = "F7"; }), Contains("F7"));
  CHECK_THAT(error_of([](json& value) { value["files"]["f"]["checksums"][0] = "12"; }),
             Contains("16 hexadecimal"));
}

}  // namespace zerorun::testing
