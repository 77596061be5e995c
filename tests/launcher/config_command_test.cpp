// Runs `zerorun config check|schema|reference` as users do.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/launcher/config_folder.h"

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
using nlohmann::json;
using zerorun::testing::ConfigFolder;
using zerorun::testing::headlines;
using zerorun::testing::kClean;
using zerorun::testing::kRefused;
using zerorun::testing::lines_of;
using zerorun::testing::Outcome;
using zerorun::testing::read_file;
using zerorun::testing::TemporaryFolder;

TEST_CASE("check ends with 0 for clean files, 1 for warnings with --werror, 2 for errors") {
  const ConfigFolder folder;
  CHECK(folder.config("check clean.json").exit_code == 0);
  CHECK(folder.config("check --werror clean.json").exit_code == 0);
  CHECK(folder.config("check warned.json").exit_code == 0);
  CHECK(folder.config("check --werror warned.json").exit_code == 1);
  CHECK(folder.config("check refused.json").exit_code == 2);
  CHECK(folder.config("check --werror refused.json warned.json").exit_code == 2);
  CHECK(folder.config("check clean.json warned.json").exit_code == 0);
  CHECK(folder.config("check --werror clean.json warned.json").exit_code == 1);
  CHECK(folder.config("check clean.json refused.json warned.json").exit_code == 2);
}

TEST_CASE("check prints all messages of each file in the order of lines, then their counts") {
  const Outcome outcome = ConfigFolder().config("check refused.json clean.json warned.json");
  CHECK(outcome.err.empty());
  const auto errors = headlines(outcome.out, "error");
  REQUIRE(errors.size() == 2);
  CHECK_THAT(errors[0], StartsWith("refused.json:3:3: error: gradient_cliping: expected a known key, found "
                                   "\"gradient_cliping\"; did you mean \"gradient_clipping\"?"));
  CHECK_THAT(
      errors[1],
      StartsWith(
          "refused.json:4:33: error: zero_optimization.stage: expected an integer from 0 to 3, found 4; "));
  const auto warnings = headlines(outcome.out, "warning");
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], StartsWith("warned.json:2:37: warning: train_micro_batch_size_per_gpu: "));
  const std::string& out = outcome.out;
  const auto first = out.find("\nrefused.json: 2 errors, 0 warnings, 0 notes\n");
  const auto second = out.find("\nclean.json: 0 errors, 0 warnings, 0 notes\n");
  const auto third = out.find("\nwarned.json: 0 errors, 1 warning, 0 notes\n");
  CHECK(out.find(errors[1]) < first);
  CHECK(first < second);
  CHECK(second < third);
  CHECK(third != std::string::npos);
}

TEST_CASE("the caret is under the column, also after tabs and characters of several bytes") {
  const ConfigFolder folder;
  folder.write("wide.json",
               "{\"train_batch_size\": 1, \"_\": \"\xC3\xA4\xE2\x82\xAC\xF0\x9F\x99\x82\", \"stge\": 1}");
  const auto lines = lines_of(folder.config("check refused.json wide.json").out);
  int carets = 0;
  for (std::size_t i = 2; i < lines.size(); ++i) {
    if (lines[i].empty() || lines[i].back() != '^') continue;
    ++carets;
    INFO(lines[i - 2] << "\n" << lines[i - 1] << "\n" << lines[i]);
    std::istringstream place(lines[i - 2].substr(lines[i - 2].find(".json:") + 6));
    int line = 0, column = 0;
    char colon = 0;
    REQUIRE(place >> line >> colon >> column);
    const auto bar = lines[i - 1].find(" | ");
    CHECK(lines[i].find(" | ") == bar);
    CHECK(std::stoi(lines[i - 1].substr(0, bar)) == line);
    CHECK(lines[i].size() == bar + 3 + static_cast<std::size_t>(column));
  }
  CHECK(carets == 3);
  // A tab, which would shift the caret, is shown as a space.
  CHECK_THAT(folder.config("check refused.json").out,
             Contains(" |  \"zero_optimization\": {\"stage\": 4}\n"));
}

TEST_CASE("check reads a configuration from stdin, and refuses endless input") {
  const ConfigFolder folder;
  const Outcome refused = folder.config("check - <refused.json");
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.out,
             StartsWith("stdin:3:3: error: ") && EndsWith("\nstdin: 2 errors, 0 warnings, 0 notes\n"));
  CHECK(folder.config("check - <clean.json").exit_code == 0);
  const Outcome endless = folder.config("check - </dev/zero");
  CHECK(endless.exit_code == 2);
  CHECK_THAT(endless.err, Contains("more than 16 MiB"));
  CHECK(folder.config("check - </dev/null").exit_code == 2);
}

TEST_CASE("check --json prints all messages as JSON") {
  const ConfigFolder folder;
  const Outcome outcome = folder.config("check --json clean.json refused.json warned.json");
  CHECK(outcome.exit_code == 2);
  const json told = json::parse(outcome.out);
  CHECK(told.at("errors") == 2);
  CHECK(told.at("warnings") == 1);
  CHECK(told.at("notes") == 0);
  const json& messages = told.at("messages");
  REQUIRE(messages.size() == 3);
  CHECK(messages[0].at("file") == "refused.json");
  CHECK(messages[0].at("line") == 3);
  CHECK(messages[0].at("column") == 3);
  CHECK(messages[0].at("severity") == "error");
  CHECK(messages[0].at("path") == "gradient_cliping");
  CHECK(messages[0].at("expected") == "a known key");
  CHECK(messages[0].at("found") == "\"gradient_cliping\"");
  CHECK(messages[0].at("remedy") == "did you mean \"gradient_clipping\"?");
  CHECK_THAT(messages[0].at("message").get<std::string>(), StartsWith("expected a known key, found "));
  CHECK(messages[1].at("path") == "zero_optimization.stage");
  CHECK(messages[1].at("line") == 4);
  CHECK(messages[2].at("file") == "warned.json");
  CHECK(messages[2].at("severity") == "warning");
  CHECK(json::parse(folder.config("check --json - <clean.json").out).at("messages").empty());
}

TEST_CASE("names of files do not reach the terminal as control characters") {
  const ConfigFolder folder;
  folder.write("a\x1b[2Jb.json", kClean);
  folder.write("c\x1b[2Jd.json", kRefused);
  for (const char* arguments : {"check *[bd].json", "check a*b.json none\x1b[2J.json", "show c*d.json",
                                "diff a*b.json warned.json"}) {
    CAPTURE(arguments);
    const Outcome outcome = folder.config(arguments);
    CHECK_THAT(outcome.out + outcome.err, Contains("?[2J") && !Contains("\x1b"));
  }
}

TEST_CASE("check --json prints valid JSON for a file with any bytes") {
  const ConfigFolder folder;
  folder.write("bytes.json", "{\"\xFF\xFE\x01\": \"\x80\"}");
  const Outcome outcome = folder.config("check --json bytes.json");
  CHECK(outcome.exit_code == 2);
  CHECK(json::parse(outcome.out).at("errors") == 1);
}

TEST_CASE("--world multiplies the batch sizes") {
  const ConfigFolder folder;
  folder.write("batch.json", R"({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 3})");
  CHECK(folder.config("check batch.json").exit_code == 0);
  CHECK(folder.config("check --world 4 batch.json").exit_code == 0);
  const Outcome outcome = folder.config("check --world 5 batch.json");
  CHECK(outcome.exit_code == 2);
  CHECK_THAT(outcome.out, StartsWith("batch.json:1:22: error: train_batch_size: ") && Contains("5 ranks"));
  const json two = json::parse(folder.config("show --world 2 batch.json").out, nullptr, true, true);
  CHECK(two.at("train_batch_size") == 12);
  CHECK(two.at("gradient_accumulation_steps") == 2);
  const json eight = json::parse(folder.config("show --world 8 clean.json").out, nullptr, true, true);
  CHECK(eight.at("train_batch_size") == 8 * 2 * 3);
}

TEST_CASE("--model-hidden gives the sizes that follow from it") {
  const ConfigFolder folder;
  folder.write("auto.json", R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
    "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto"}})");
  const json zero = json::parse(folder.config("show --model-hidden 4097 auto.json").out, nullptr, true, true)
                        .at("zero_optimization");
  CHECK(zero.at("reduce_bucket_size") == 16785409);           // 4097 x 4097
  CHECK(zero.at("stage3_prefetch_bucket_size") == 15106868);  // 0.9 x 4097 x 4097, rounded down
  CHECK(zero.at("stage3_param_persistence_threshold") == 40970);
  const Outcome open = folder.config("check auto.json");
  CHECK(open.exit_code == 0);
  CHECK(headlines(open.out, "note").size() == 1);
  CHECK_THAT(open.out,
             Contains("auto.json:2:27: note: zero_optimization.reduce_bucket_size: \"auto\": from the "
                      "model's hidden size when a run starts: zero_optimization.reduce_bucket_size, "
                      "zero_optimization.stage3_prefetch_bucket_size, "
                      "zero_optimization.stage3_param_persistence_threshold\n"));
  CHECK(headlines(folder.config("check --quiet auto.json").out, "note").empty());
}

TEST_CASE("with --compat obsolete keys are warnings, and typos stay errors") {
  const ConfigFolder folder;
  folder.write("old.json", R"({"train_micro_batch_size_per_gpu": 2, "obsolete_setting": true})");
  CHECK(folder.config("check old.json").exit_code == 2);
  const Outcome outcome = folder.config("check --compat old.json");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Contains("warning: obsolete_setting: "));
  CHECK(folder.config("check --compat --werror old.json").exit_code == 1);
  CHECK(folder.config("check --compat refused.json").exit_code == 2);
}

TEST_CASE("schema prints a JSON Schema and reference a page, both with every section") {
  const ConfigFolder folder;
  const Outcome schema = folder.config("schema");
  CHECK(schema.exit_code == 0);
  CHECK(json::parse(schema.out).at("properties").contains("zero_optimization"));
  const Outcome page = folder.config("reference");
  CHECK(page.exit_code == 0);
  CHECK_THAT(page.out, StartsWith("# ") && Contains("`zero_optimization`"));
}

TEST_CASE("output that does not fit is an error, also if the text is longer than stdio's buffer") {
  const zerorun::testing::CommandFolder folder;
  for (const char* arguments : {"config schema", "config reference", "--help", "--version"}) {
    const Outcome outcome =
        folder.run(std::string(arguments) + " >/dev/full 2>problem; echo $? $(cat problem)");
    CHECK(outcome.out == "1 zerorun: the output could not be written: No space left on device\n");
  }
}

TEST_CASE("a mistake on the command line is one message and exit code 2") {
  const ConfigFolder folder;
  struct Case {
    std::string arguments, told;
  };
  const std::vector<Case> cases = {
      {"check missing.json", "missing.json: expected a configuration file, found no such file"},
      {"check clean.json missing.json", "missing.json: "},
      {"check .", "found a directory"},
      {"show missing.json", "missing.json: "},
      {"diff clean.json missing.json", "missing.json: "},
      {"check", "FILE is required"},
      {"diff clean.json", "FILES: expected at least 2, found 1"},
      {"show clean.json warned.json", "FILE: expected at most 1, found 2 (see zerorun config --help)"},
      {"check --world 0 clean.json", "--world"},
      {"check --world many clean.json", "--world"},
      {"check --model-hidden -5 clean.json", "--model-hidden"},
      {"check --no-such-option clean.json", "--no-such-option"},
      {"", "subcommand"},
      {"frobnicate clean.json", "expected check, show, diff, schema or reference, found frobnicate"},
      {"schema clean.json", "clean.json"},
  };
  for (const auto& [arguments, told] : cases) {
    const Outcome outcome = folder.config(arguments);
    INFO(arguments << ": " << outcome.out << outcome.err);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, StartsWith("zerorun: ") && Contains(told));
    CHECK(lines_of(outcome.err).size() == 1);
  }
  const Outcome both = folder.config("check missing.json refused.json");
  CHECK(both.exit_code == 2);
  CHECK(!headlines(both.out, "error").empty());  // the second file is checked nevertheless
  const Outcome help = folder.config("--help");
  CHECK(help.exit_code == 0);
  CHECK_THAT(help.out, Contains("check") && Contains("diff") && Contains("Exit code"));
}
