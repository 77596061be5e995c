#include "samples/common/arguments.h"

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace samples;
namespace {

using Catch::Matchers::Contains;

// A program that has the shared flags, a number and a list. Its constructor parses the arguments.
struct Program {
  DeepspeedFlags deepspeed;
  int64_t steps = 7;
  std::vector<std::string> data;

  explicit Program(std::vector<std::string> arguments) {
    CLI::App app("a program", "program");
    deepspeed.add_to(app);
    app.add_option("--steps", steps);
    app.add_option("--data", data);
    arguments.insert(arguments.begin(), "program");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    parse_arguments(app, static_cast<int>(argv.size()), argv.data());
  }
};

std::string config_of(const std::vector<std::string>& arguments) {
  return Program(arguments).deepspeed.config_file().string();
}

TEST_CASE("the config is named in every way that DeepSpeed's programs know") {
  CHECK(config_of({"--deepspeed", "a.json"}) == "a.json");
  CHECK(config_of({"--deepspeed=a.json"}) == "a.json");
  CHECK(config_of({"--deepspeed", "--deepspeed_config", "a.json"}) == "a.json");
  CHECK(config_of({"--deepspeed_config=a.json", "--deepspeed"}) == "a.json");
  CHECK(config_of({"--deepspeed", "a.json", "--deepspeed_config", "a.json"}) == "a.json");
  CHECK(config_of({"--local_rank=1", "--deepspeed", "a.json"}) == "a.json");
  CHECK(config_of({"--local-rank", "1", "--deepspeed", "--steps", "3", "--deepspeed_config", "a.json"}) ==
        "a.json");
}

TEST_CASE("flags after an empty --deepspeed keep their values") {
  const Program program({"--deepspeed", "--steps", "3", "--deepspeed_config", "a.json", "--data", "x", "y"});
  CHECK(program.steps == 3);
  CHECK(program.data == std::vector<std::string>{"x", "y"});
}

TEST_CASE("a config that is missing or named twice is a mistake") {
  CHECK_THAT(user_error([] { config_of({}); }), Contains("--deepspeed FILE"));
  CHECK_THAT(user_error([] { config_of({"--deepspeed"}); }), Contains("--deepspeed FILE"));
  CHECK_THAT(user_error([] {
               config_of({"--deepspeed", "a.json", "--deepspeed_config", "b.json"});
             }),
             Contains("a.json") && Contains("b.json"));
}

TEST_CASE("an output's folder") {
  CHECK(folder_of("") == "");
  CHECK(folder_of("log.csv") == ".");
  CHECK(folder_of("a/b/log.csv") == "a/b");
  CHECK(folder_of("/log.csv") == "/");
}

TEST_CASE("wrong flags are one message that names them") {
  CHECK_THAT(user_error([] { Program({"--stepz", "3"}); }), Contains("--stepz") && Contains("--help"));
  CHECK_THAT(user_error([] { Program({"--steps", "many"}); }), Contains("--steps") && Contains("many"));
  CHECK_THAT(user_error([] { Program({"--steps"}); }), Contains("--steps"));
  CHECK_THAT(user_error([] { Program({"stray"}); }), Contains("stray"));
}

}  // namespace
}  // namespace zerorun::testing
