// Tests the zero_optimization section: stages, sizes under both of their names, and values at each stage.
#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::test;

namespace {

std::string section(const std::string& keys) {
  return with("\"zero_optimization\": {" + keys + "}");
}

Config parse(const std::string& keys) {
  return parse_config(section(keys), "conf", 1);
}

ZeroConfig zero(const std::string& keys) {
  return parse(keys).zero;
}

struct Size {
  std::string key;
  std::string alias;
  int64_t ZeroConfig::*member;
  int64_t usual;
};

const std::vector<Size> sizes = {
    {"stage3_max_live_parameters", "max_live_parameters", &ZeroConfig::max_live_parameters, 1'000'000'000},
    {"stage3_max_reuse_distance", "max_reuse_distance", &ZeroConfig::max_reuse_distance, 1'000'000'000},
    {"stage3_prefetch_bucket_size", "prefetch_bucket_size", &ZeroConfig::prefetch_bucket_size, 50'000'000},
    {"stage3_param_persistence_threshold", "param_persistence_threshold",
     &ZeroConfig::param_persistence_threshold, 100'000},
    {"stage3_model_persistence_threshold", "model_persistence_threshold",
     &ZeroConfig::model_persistence_threshold, std::numeric_limits<int64_t>::max()},
};

}  // namespace

TEST_CASE("stages 0 to 3 are supported") {
  for (int stage = 0; stage <= 3; ++stage) {
    CHECK(zero("\"stage\": " + std::to_string(stage)).stage == stage);
  }
  CHECK(zero("\"stage\": 3.0").stage == 3);
}

TEST_CASE("overlap_comm is on by default at stage 3 only, and a written value is used") {
  for (int stage = 0; stage <= 3; ++stage) {
    const std::string written = "\"stage\": " + std::to_string(stage);
    INFO(written);
    CHECK(zero(written).overlap_comm == (stage == 3));
    CHECK(zero("\"overlap_comm\": null, " + written).overlap_comm == (stage == 3));
    CHECK(zero("\"overlap_comm\": true, " + written).overlap_comm);
    CHECK(!zero("\"overlap_comm\": false, " + written).overlap_comm);
  }
  CHECK(!zero("").overlap_comm);
}

TEST_CASE("each size of stage 3 has DeepSpeed's default, and setting it changes no other size") {
  for (const Size& size : sizes) {
    INFO(size.key);
    CHECK(zero("\"stage\": 3").*size.member == size.usual);
    for (const std::string& name : {size.key, size.alias}) {
      INFO(name);
      for (const auto& [text, value] : std::vector<std::pair<std::string, int64_t>>{
               {"0", 0}, {"12345", 12345}, {"3e8", 300'000'000}, {"9223372036854775807", INT64_MAX}}) {
        INFO(text);
        const Config config = parse("\"stage\": 3, \"" + name + "\": " + text);
        CHECK(told(config).empty());
        for (const Size& other : sizes) {
          CHECK(config.zero.*other.member == (other.key == size.key ? value : other.usual));
        }
      }
    }
  }
}

TEST_CASE("a wrong size is refused at its place, under the name that the file gives it") {
  struct Wrong {
    std::string value;
    std::string remedy;
  };
  const std::vector<Wrong> wrong = {
      {"-1", "write a number of elements"},     {"-0.5", "write a number of elements"},
      {"true", "write a number of elements"},   {"null", "leave the key out"},
      {"{}", "write a number of elements"},     {"1e19", "write a number of elements"},
      {"\"5e7\"", "write a number of elements"}};
  std::vector<std::string> names = {"sub_group_size"};
  for (const Size& size : sizes) {
    names.push_back(size.key);
    names.push_back(size.alias);
  }
  for (const std::string& name : names) {
    for (const Wrong& row : wrong) {
      const std::string before = "\"zero_optimization\": {\"stage\": 3,\n \"" + name + "\": ";
      INFO(before << row.value);
      const auto found = refusals(with(before + row.value + "}"));
      REQUIRE(found.size() == 1);
      CHECK(found[0].place() == "3:" + std::to_string(name.size() + 6) + " zero_optimization." + name);
      CHECK(found[0].expected == "an integer of at least 0");
      CHECK_THAT(found[0].remedy, Catch::StartsWith(row.remedy));
    }
  }
}

TEST_CASE("a key written under both its names is refused once, at its alias") {
  for (const Size& size : sizes) {
    const std::string key = "\"" + size.key + "\": 1";
    const std::string alias = "\"" + size.alias + "\": 1";
    for (const bool alias_first : {false, true}) {
      const auto found = refusals(
          section("\"stage\": 3,\n" + (alias_first ? alias : key) + ",\n" + (alias_first ? key : alias)));
      REQUIRE(found.size() == 1);
      CHECK(found[0].place() == (alias_first ? "3:1" : "4:1") + (" zero_optimization." + size.alias));
      CHECK_THAT(found[0].found, Catch::Contains("\"" + size.key + "\" as well"));
      CHECK(found[0].remedy == "remove one of the two");
    }
  }
}

TEST_CASE("below stage 3 the sizes of stage 3 are read, and a note says that they change nothing") {
  for (const Size& size : sizes) {
    for (const std::string& name : {size.key, size.alias}) {
      for (const char* stage : {"", "\"stage\": 0,", "\"stage\": 1,", "\"stage\": 2,"}) {
        INFO(name << " " << stage);
        const Config config = parse(std::string(stage) + "\n\"" + name + "\": 7");
        CHECK(config.zero.*size.member == 7);
        REQUIRE(told(config).size() == 1);
        CHECK_THAT(told(config)[0],
                   Catch::StartsWith("conf:3:") &&
                       Catch::EndsWith(": note: zero_optimization." + name +
                                       ": 7 has no effect: parameters are partitioned only at stage 3"));
      }
    }
  }
  CHECK(told(parse("\"stage\": 2")).empty());
}

TEST_CASE("sub_group_size is accepted at every stage") {
  for (const char* stage : {"2", "3"}) {
    for (const auto& [size, elements] : {std::pair("0", 0), {"60000", 60000}, {"1e9", 1'000'000'000}}) {
      const Config config = parse(std::string("\"stage\": ") + stage + ", \"sub_group_size\": " + size);
      CHECK(told(config).empty());
      CHECK(config.zero.offload_optimizer.sub_group_size == elements);
    }
  }
}

TEST_CASE("contiguous_gradients means the same at stage 3 as below it") {
  CHECK(told(parse("\"stage\": 3, \"contiguous_gradients\": true")).empty());
  const auto notes = told(parse("\"stage\": 3, \"contiguous_gradients\": false"));
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Catch::Contains("note: zero_optimization.contiguous_gradients: false has no effect"));
}

TEST_CASE("leaf modules are lists of texts, or one text") {
  const Config config = parse(R"("stage": 3, "leaf_module":
    {"classes": ["Experts", "a.b.Block"], "names": "head", "name_suffixes": null})");
  CHECK(config.python.leaf_classes == std::vector<std::string>{"Experts", "a.b.Block"});
  CHECK(config.python.leaf_names == std::vector<std::string>{"head"});
  CHECK(config.python.leaf_name_suffixes.empty());
  CHECK_THAT(config.resolved, Catch::Contains(R"("classes": ["Experts", "a.b.Block"])"));
  REQUIRE(told(config).size() == 1);
  CHECK_THAT(told(config)[0], Catch::Contains("zero_optimization.leaf_module: marks modules of Python"));
  const Config below = parse(R"("stage": 2, "leaf_module": {"names": ["head"]})");
  REQUIRE(told(below).size() == 1);
  CHECK_THAT(told(below)[0], Catch::Contains("leaf_module: has no effect: parameters are partitioned only"));
  CHECK(told(parse(R"("leaf_module": {"classes": []})")).empty());
}
