#include <catch2/catch.hpp>
#include <string>

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

TEST_CASE("one wrong batch size is not followed by complaints about the others") {
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
