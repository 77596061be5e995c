#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "base/error.h"
#include "config/check.h"
#include "tests/config/refusal.h"

using zerorun::MeshSizes;
using zerorun::parse_config;
using namespace zerorun::test;
using Catch::Matchers::Contains;

namespace {

std::string text_with(const std::string& mesh, const std::string& more = "") {
  return "{\"train_micro_batch_size_per_gpu\": 3,\n \"zerorun\": {\"mesh\": " + mesh + "}" + more + "}";
}

}  // namespace

TEST_CASE("zerorun.mesh gives the sizes, and only data ranks count for batch sizes") {
  const auto config = parse_config(text_with(R"({"tensor": 2, "pipeline": 2})"), "conf", 8);
  CHECK(config.mesh == MeshSizes{.data = 2, .tensor = 2, .pipeline = 2});
  CHECK(config.batch.train_batch_size == 6);
  CHECK_THAT(config.resolved, Contains(R"("data": 2)"));
  CHECK(parse_config(text_with("{}"), "conf", 8).mesh == MeshSizes{.data = 8, .tensor = 1, .pipeline = 1});
  CHECK(!parse_config(R"({"train_batch_size": 8})", "conf", 8).mesh);
}

TEST_CASE("zerorun.sum_group is a number of ranks; without it the transport chooses") {
  const auto read = [](const std::string& value) {
    return parse_config(R"({"train_batch_size": 8, "zerorun": {"sum_group": )" + value + "}}", "conf", 8)
        .sum_group;
  };
  CHECK(parse_config(R"({"train_batch_size": 8})", "conf", 8).sum_group == 0);
  CHECK(read("2") == 2);
  CHECK(read("9000000000") == std::numeric_limits<int>::max());
  CHECK_THROWS_WITH(read("0"), Catch::Contains("zerorun.sum_group") && Catch::Contains("at least 1"));
}

TEST_CASE("the program's mesh stands in for zerorun.mesh, and must be the same as one that is there") {
  const MeshSizes of_program{.data = 0, .tensor = 4, .pipeline = 1};
  const auto config =
      parse_config(R"({"train_batch_size": 6})", "conf", {.world_size = 8, .mesh = of_program});
  CHECK(config.mesh == MeshSizes{.data = 2, .tensor = 4, .pipeline = 1});
  CHECK(config.batch.micro_batch_size_per_gpu == 3);
  const std::string same = text_with(R"({"tensor": 4})");
  CHECK(parse_config(same, "conf", {.world_size = 8, .mesh = of_program}).batch.train_batch_size == 6);
  CHECK_THROWS_WITH(
      parse_config(text_with(R"({"tensor": 2})"), "conf", {.world_size = 8, .mesh = of_program}),
      Contains("conf:2:22: error: zerorun.mesh") &&
          Contains("the mesh of the program, data 2 x tensor 4 x pipeline 1") &&
          Contains("data 4 x tensor 2 x pipeline 1"));
}

TEST_CASE("a mesh that does not fit is refused with its place") {
  auto found = refusals(text_with(R"({"data": 3, "tensor": 2})"), 8);
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "2:22 zerorun.mesh");
  CHECK(found[0].expected == "sizes that multiply to the number of ranks, 8 ranks");
  CHECK(found[0].found == "data 3 x tensor 2 x pipeline 1");
  found = refusals(text_with(R"({"tensor": 0})"), 8);
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "2:33 zerorun.mesh.tensor");
  found = refusals(text_with(R"({"tensors": 2})"), 8);
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0].place(), Contains("zerorun.mesh.tensors"));
}

TEST_CASE("sizes that DeepSpeed's keys give differently are refused, and both are named") {
  auto found = refusals(text_with(R"({"pipeline": 2})", R"(, "pipeline": {"stages": 4})"), 8);
  REQUIRE(found.size() == 1);
  CHECK(found[0].place() == "2:35 zerorun.mesh.pipeline");
  CHECK(found[0].expected == "pipeline.stages = 4");
  CHECK(found[0].found == "2 pipeline ranks");
  found = refusals(text_with(R"({"tensor": 2})", R"(, "tensor_parallel": {"autotp_size": 1})"), 8);
  REQUIRE(found.size() == 1);
  CHECK(found[0].expected == "tensor_parallel.autotp_size = 1");
  CHECK(refusals(text_with(R"({"pipeline": 2})", R"(, "pipeline": {"stages": 2})"), 8).empty());
  CHECK(refusals(text_with(R"({"data": 8})", R"(, "tensor_parallel": {"autotp_size": 0})"), 8).empty());
}

TEST_CASE("pipeline.stages gives the mesh, with autotp_size too, and divides the ranks") {
  const std::string more = R"({"train_micro_batch_size_per_gpu": 1, "pipeline": {"stages": 2)";
  CHECK(parse_config(more + "}}", "conf", 8).mesh == MeshSizes{.data = 4, .tensor = 1, .pipeline = 2});
  CHECK(parse_config(more + R"(}, "tensor_parallel": {"autotp_size": 2}})", "conf", 8).mesh ==
        MeshSizes{.data = 2, .tensor = 2, .pipeline = 2});
  CHECK(!parse_config(R"({"train_batch_size": 8, "pipeline": {"stages": 1}})", "conf", 8).mesh);
  const auto found = refusals(more + R"(}, "tensor_parallel": {"autotp_size": 2}})", 6);
  REQUIRE(found.size() == 1);
  CHECK(found[0].path == "pipeline.stages");
  CHECK(found[0].expected == "a divisor of the number of ranks, 3");
}

TEST_CASE("the ranks that a file names along an axis: zerorun.mesh goes before DeepSpeed's keys") {
  const auto named = [](const std::string& text) {
    return named_ranks(zerorun::config::check_config(text, "conf").settings);
  };
  const std::string deepspeeds = R"("pipeline": {"stages": 2}, "tensor_parallel": {"autotp_size": 4})";
  CHECK(!named("{}").tensor);
  CHECK(!named("{}").pipeline);
  CHECK(named("{" + deepspeeds + "}").tensor == 4);
  CHECK(named("{" + deepspeeds + "}").pipeline == 2);
  CHECK(named(R"({"tensor_parallel": {"autotp_size": 0}})").tensor == 1);
  const std::string both = R"({"zerorun": {"mesh": {"pipeline": 3}}, )" + deepspeeds + "}";
  CHECK(named(both).pipeline == 3);
  CHECK(named(both).tensor == 4);
  CHECK(!named(R"({"zerorun": {"mesh": {"pipeline": "auto"}}, "pipeline": {"stages": 0.5}})").pipeline);
}

TEST_CASE("pipeline.partition and pipeline.reduce") {
  using Partition = zerorun::PipelineConfig::Partition;
  const auto read = [](const std::string& keys) {
    return parse_config(R"({"train_batch_size": 8, "pipeline": {)" + keys + "}}", "conf", 8).pipeline;
  };
  CHECK(read("").partition == Partition::parameters);
  CHECK(!read("").reduces_by_window);
  CHECK(read(R"("partition": "best")").partition == Partition::parameters);
  CHECK(read(R"("partition": "uniform")").partition == Partition::uniform);
  CHECK(read(R"("reduce": "window")").reduces_by_window);
  CHECK(refusals(R"({"train_batch_size": 8, "pipeline": {"reduce": "never"}})", 8).size() == 1);
}

TEST_CASE("tensor_parallel.autotp_size gives the mesh, and divides the ranks") {
  const std::string two = R"({"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2}})";
  CHECK(parse_config(two, "conf", {.world_size = 8}).mesh ==
        MeshSizes{.data = 4, .tensor = 2, .pipeline = 1});
  CHECK(parse_config(two, "conf", {.world_size = 8}).batch.micro_batch_size_per_gpu == 2);
  const auto found =
      refusals(R"({"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2}})", 9);
  REQUIRE(found.size() == 1);
  CHECK(found[0].path == "tensor_parallel.autotp_size");
  CHECK(found[0].expected == "a divisor of the number of ranks, 9");
  for (const char* none : {R"({"autotp_size": 1})", R"({"autotp_size": 0})"}) {
    CAPTURE(none);
    const std::string text = R"({"train_batch_size": 8, "tensor_parallel": )" + std::string(none) + "}";
    CHECK(refusals(text, 8).empty());
    CHECK(!parse_config(text, "conf", {.world_size = 8}).mesh);
  }
}

TEST_CASE("batch sizes that do not fit name data ranks") {
  const auto found = refusals(R"({"train_batch_size": 7, "zerorun": {"mesh": {"tensor": 4}}})", 8);
  REQUIRE(found.size() == 1);
  CHECK(found[0].expected == "a multiple of 2 data ranks");
}

TEST_CASE("zerorun.restart.partner is a switch that is off without the key") {
  const auto read = [](const std::string& restart) {
    return parse_config(R"({"train_batch_size": 8, "zerorun": {"restart": )" + restart + "}}", "conf", 8)
        .holds_at_partner;
  };
  CHECK(!parse_config(R"({"train_batch_size": 8})", "conf", 8).holds_at_partner);
  CHECK(!read("{}"));
  CHECK(read(R"({"partner": true})"));
  CHECK_THROWS_WITH(read(R"({"partner": "yes"})"),
                    Contains("zerorun.restart.partner") && Contains("true or false"));
}
