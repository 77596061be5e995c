#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "config/check.h"
#include "tests/config/refusal.h"

using zerorun::parse_config;
using namespace zerorun::test;

namespace {

std::string batch_text(const std::string& train, const std::string& micro, const std::string& steps) {
  std::string text = "{";
  if (train != "-") text += "\"train_batch_size\": " + train + ",";
  if (micro != "-") text += "\"train_micro_batch_size_per_gpu\": " + micro + ",";
  if (steps != "-") text += "\"gradient_accumulation_steps\": " + steps + ",";
  return text + "}";
}

// What zerorun sets for ranks while hosts of the job are left out.
class FewerRanks {
 public:
  FewerRanks(const std::string& left, const std::string& full) {
    ::setenv("WORLD_SIZE", left.c_str(), 1);
    ::setenv("ZERORUN_FULL_WORLD_SIZE", full.c_str(), 1);
  }
  ~FewerRanks() {
    ::unsetenv("WORLD_SIZE");
    ::unsetenv("ZERORUN_FULL_WORLD_SIZE");
  }
};

}  // namespace

TEST_CASE("batch sizes resolve, or are refused, as in DeepSpeed") {
  int taken = 0;
  int refused = 0;
  for (const std::string& line : data_lines("batch_sizes.txt")) {
    INFO(line);
    const auto fields = split(line, ' ');
    const int world = std::stoi(fields.at(0));
    const std::string text = batch_text(fields.at(1), fields.at(2), fields.at(3));
    if (fields.at(4) == "refused") {
      ++refused;
      REQUIRE(!refusals(text, world).empty());
    } else {
      ++taken;
      const auto batch = parse_config(text, "conf", world).batch;
      REQUIRE(batch.train_batch_size == std::stoll(fields.at(4)));
      REQUIRE(batch.micro_batch_size_per_gpu == std::stoll(fields.at(5)));
      REQUIRE(batch.gradient_accumulation_steps == std::stoll(fields.at(6)));
    }
  }
  CHECK(taken == 140);
  CHECK(refused == 1309);
}

TEST_CASE("a refused batch names the key, the product and the remedy") {
  auto found = refusals("{\n  \"train_batch_size\": 7,\n  \"train_micro_batch_size_per_gpu\": 2\n}", 3);
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "2:23 train_batch_size");
  CHECK(found[0].expected == "a multiple of train_micro_batch_size_per_gpu 2 x 3 ranks");
  CHECK(found[0].found == "7");

  found = refusals(
      "{\"train_batch_size\": 9, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2}",
      2);
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "1:22 train_batch_size");
  CHECK(found[0].expected ==
        "train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 2 x 2 ranks = 8");

  found = refusals("\n\n {\"gradient_accumulation_steps\": 2}");
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "3:2 train_batch_size");
  CHECK(found[0].found == "neither");
}

TEST_CASE("batch sizes that 64 bits cannot hold are refused") {
  const std::string huge = "4611686018427387904";  // 2^62
  auto found = refusals(batch_text("-", huge, "-"), 2);
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "1:36 train_micro_batch_size_per_gpu");
  found = refusals(batch_text(huge, huge, "2"), 4);
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "1:22 train_batch_size");
  found = refusals(batch_text(huge, huge, "-"), 4);
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "1:22 train_batch_size");
}

TEST_CASE("if the number of ranks is not known, sizes that fit no number of ranks are refused") {
  struct Row {
    const char* train;
    const char* micro;
    const char* steps;
    const char* expected;  // empty: accepted for some world size
  };
  for (const Row& row : std::vector<Row>{
           {"-", "-", "-", "train_batch_size or train_micro_batch_size_per_gpu"},
           {"-", "-", "4", "train_batch_size or train_micro_batch_size_per_gpu"},
           {"null", "null", "\"auto\"", "train_batch_size or train_micro_batch_size_per_gpu"},
           {"7", "2", "-", "a multiple of train_micro_batch_size_per_gpu 2"},
           {"7", "-", "2", "a multiple of gradient_accumulation_steps 2"},
           {"7", "\"auto\"", "2", "a multiple of gradient_accumulation_steps 2"},
           {"8", "2", "\"auto\"", ""},
           {"8", "2", "3", "a multiple of train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 3"},
           {"-", "4611686018427387904", "4", "a global batch that 64 bits can hold"},
           {"8", "2", "2", ""},
           {"7", "-", "-", ""},
           {"-", "3", "-", ""},
           {"\"auto\"", "\"auto\"", "\"auto\"", ""},
           {"\"auto\"", "-", "-", ""},
       }) {
    const std::string text = batch_text(row.train, row.micro, row.steps);
    INFO(text);
    const auto checked = zerorun::config::check_config(text, "conf");
    CHECK(checked.refused() == (row.expected[0] != '\0'));
    for (const auto& diagnostic : checked.diagnostics.messages()) {
      if (diagnostic.severity == zerorun::config::Severity::error)
        CHECK(diagnostic.mistake.expected == row.expected);
    }
  }
}

TEST_CASE("if all three batch sizes are fixed, a note says how many ranks fit") {
  const std::string text = batch_text("12", "3", "2");
  const auto checked = zerorun::config::check_config(text, "conf");
  REQUIRE(checked.diagnostics.messages().size() == 1);
  CHECK(checked.diagnostics.headline(checked.diagnostics.messages()[0]) ==
        "conf:1:22: note: train_batch_size: 12 is train_micro_batch_size_per_gpu 3 x "
        "gradient_accumulation_steps 2 x 2 ranks: a run needs exactly that many");
  CHECK(zerorun::config::check_config(text, "conf", {.world_size = 2}).diagnostics.messages().empty());
  const auto found = refusals(text, 3);
  REQUIRE(found.size() == 1);
  CHECK(found[0].remedy == "leave out one of the three batch sizes, or change one, or run 2 ranks");
  CHECK(refusals(batch_text("13", "3", "2"), 3).at(0).remedy ==
        "leave out one of the three batch sizes, or change one");
}

TEST_CASE("one wrong batch size gives no errors about the others") {
  const auto found = refusals("{\"train_micro_batch_size_per_gpu\": \"auto\"}");
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "1:36 train_micro_batch_size_per_gpu");
}

TEST_CASE("null is the same as leaving a batch size out") {
  const auto batch =
      parse_config("{\"train_batch_size\": 8, \"gradient_accumulation_steps\": null}", "conf", 2).batch;
  CHECK(batch.micro_batch_size_per_gpu == 4);
  CHECK(batch.gradient_accumulation_steps == 1);
}

TEST_CASE("train_batch_size \"auto\" follows from the other two sizes, not from the program") {
  const std::string text = R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 3,
                              "gradient_accumulation_steps": "auto"})";
  const auto batch =
      parse_config(text, "conf",
                   zerorun::LoadOptions{.world_size = 2,
                                        .arguments = {{"gradient_accumulation_steps", int64_t{4}},
                                                      {"train_micro_batch_size_per_gpu", int64_t{9}}}})
          .batch;
  CHECK(batch.train_batch_size == 24);
  CHECK(batch.micro_batch_size_per_gpu == 3);
  CHECK(batch.gradient_accumulation_steps == 4);
}

TEST_CASE("with fewer ranks than the whole job has, accumulation rises and the global batch stays") {
  struct Case {
    std::string text;
    int left, full;
    int64_t train, micro, steps;
  };
  const std::string mesh = R"("zerorun": {"mesh": {"tensor": 2}})";
  const std::vector<Case> cases = {
      {R"({"train_micro_batch_size_per_gpu": 3})", 2, 4, 12, 3, 2},
      {R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2})", 3, 6, 36, 3, 4},
      {R"({"train_batch_size": 24})", 2, 6, 24, 4, 3},
      {R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2})", 3, 4, 24, 2, 4},
      {R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2})", 2,
       4, 8, 1, 4},
      {R"({"train_micro_batch_size_per_gpu": 3, )" + mesh + "}", 4, 8, 12, 3, 2},
  };
  for (const Case& one : cases) {
    CAPTURE(one.text);
    const FewerRanks fewer(std::to_string(one.left), std::to_string(one.full));
    const zerorun::Config config = parse_config(one.text, "conf", one.left);
    CHECK(config.batch.train_batch_size == one.train);
    CHECK(config.batch.micro_batch_size_per_gpu == one.micro);
    CHECK(config.batch.gradient_accumulation_steps == one.steps);
    REQUIRE(config.warnings.size() == 1);
    CHECK_THAT(config.warnings[0],
               Catch::Contains("so that train_batch_size stays " + std::to_string(one.train)) &&
                   Catch::Contains("data ranks are left (--min_nodes)"));
  }
  const FewerRanks fewer("3", "4");
  const std::string text = R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2})";
  CHECK_THROWS_WITH(parse_config(text, "conf", 3),
                    Catch::Contains("gradient_accumulation_steps: expected a number whose 4-fold 3 divides, "
                                    "because 3 of the job's 4 data ranks are left (--min_nodes), found 2"));
  // A config for one rank, as for an engine of its own, is not that of the job.
  CHECK(parse_config(text, "conf", 1).batch.train_batch_size == 4);
  ::setenv("ZERORUN_FULL_WORLD_SIZE", "many", 1);
  CHECK_THROWS_WITH(parse_config(text, "conf", 3),
                    Catch::Contains("ZERORUN_FULL_WORLD_SIZE: expected a number of ranks, found 'many'"));
}

TEST_CASE("an impossible hidden size is refused, and so is an argument for an unknown key") {
  const std::string text = R"({"train_batch_size": 1})";
  for (const int64_t size : {int64_t{0}, int64_t{-1}, INT64_MAX}) {
    CHECK_THROWS_WITH(parse_config(text, "conf", zerorun::LoadOptions{.hidden_size = size}),
                      Catch::Contains("hidden_size: expected a number from 1"));
  }
  CHECK_THROWS_WITH(
      parse_config(text, "conf", zerorun::LoadOptions{.arguments = {{"optimizer.params.lrr", 0.1}}}),
      Catch::Contains("optimizer.params.lrr") && Catch::Contains("did you mean \"lr\"?"));
  CHECK_THROWS_WITH(
      parse_config(text, "conf", zerorun::LoadOptions{.arguments = {{"steps_per_print", int64_t{1}}}}),
      Catch::Contains("steps_per_print: expected a key that can be \"auto\""));
}

TEST_CASE("an argument that does not fit is refused at the key that asks for it") {
  const std::string text = "{\"train_batch_size\": 1,\n\"gradient_clipping\": \"auto\"}";
  for (const double wrong : {-1.0, std::nan(""), HUGE_VAL}) {
    CHECK_THROWS_WITH(
        parse_config(text, "conf", zerorun::LoadOptions{.arguments = {{"gradient_clipping", wrong}}}),
        Catch::Contains("conf:2:22: error: gradient_clipping: expected a number of at least 0, found ") &&
            Catch::Contains("from the program's arguments"));
  }
}
