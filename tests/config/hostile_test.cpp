// Tests that any JSON value at any key, and texts made to exhaust the reader, end quickly with a message.
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/check.h"
#include "config/key_table.h"
#include "tests/config/config_draft.h"
#include "tests/config/refusal.h"
#include "tests/support/temporary_folder.h"

using zerorun::testing::TemporaryFolder;
using zerorun::testing::user_error;

namespace zerorun::test {
using namespace config;
namespace {

constexpr std::size_t longest_message = 1000;
constexpr std::size_t most_messages = 1000;  // limit for each severity

std::string repeated(std::string_view part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

const std::vector<std::string>& hostile_values() {
  static const std::vector<std::string> values = {
      "null",
      "true",
      "-0",
      "-0.0",
      "1.7976931348623157e308",
      "-1.7976931348623157e308",
      "4.9e-324",
      "1e-999999999999999999999",
      "9223372036854775807",
      "-9223372036854775808",
      "9223372036854775808",
      "18446744073709551616",
      repeated("9", 300),
      "0." + repeated("3", 5000),
      R"("")",
      R"(" auto")",
      R"("\u0000\u0007\u001b[2J\n\r\t\u007f")",
      R"("\ud83d\ude00 \u202e")",
      R"("99999999999999999999999999")",
      "\"" + repeated("\xC3\xA4", 50000) + "\"",
      "[]",
      "{}",
      "[null, true, {\"a\": []}, \"auto\"]",
      "[" + repeated("0.5, ", 10000) + "0.5]",
      repeated("[", 90) + repeated("]", 90),
      R"({"": {"": ""}, "a.b": 1, "*": 2, "[0]": 3})",
      R"({"enabled": "auto", "type": [], "params": null, "device": {}})",
      "{\"" + repeated("k", 100000) + "\": {\"enabled\": 1}}",
  };
  return values;
}

bool is_at_or_in(const std::string& path, const std::string& outer) {
  return path == outer || path.starts_with(outer + ".") || path.starts_with(outer + "[");
}

/// Returns the paths of all errors.
std::multiset<std::string> errors_in(const CheckedConfig& checked) {
  std::multiset<std::string> paths;
  for (const Diagnostic& diagnostic : checked.diagnostics.messages()) {
    if (diagnostic.severity == Severity::error) paths.insert(diagnostic.mistake.path);
  }
  return paths;
}

bool is_printable(std::string_view text) {
  for (const unsigned char c : text) {
    if (c < 0x20 || c == 0x7f) return false;
  }
  return true;
}

void check_messages(const CheckedConfig& checked) {
  for (const Diagnostic& diagnostic : checked.diagnostics.messages()) {
    const std::string message = checked.diagnostics.headline(diagnostic);
    INFO(message.substr(0, longest_message));
    CHECK(message.size() <= longest_message);
    CHECK(is_printable(message));
    CHECK(checked.diagnostics.render(diagnostic).size() <= message.size() + longest_message);
    CHECK(message.find(diagnostic.mistake.path.empty()
                           ? "top level"
                           : diagnostic.mistake.path.substr(0, 100)) != std::string::npos);
  }
}

/// Returns true if a value at `path` may cause an error at the key `error`, since the two keys can conflict.
bool is_about_both(const std::string& error, const std::string& path) {
  const auto is_size = [](const std::string& key) {
    return key.starts_with("train_") || key == "gradient_accumulation_steps";
  };
  if (is_size(error) && is_size(path)) return true;
  return split(error, '.').front() == split(path, '.').front() || error == "bf16.enabled" ||
         error == "bfloat16.enabled";
}

TEST_CASE("any JSON value at any key is accepted, or refused by a message that names the key") {
  int refused = 0;
  for (const KeyFact* fact : key_facts()) {
    const std::string path(fact->path);
    const auto steps = split(path, '.');
    for (const std::string& value : hostile_values()) {
      INFO(path << ": " << value.substr(0, 200));
      const std::string text = Draft().put({"train_micro_batch_size_per_gpu"}, "1").put(steps, value).text();
      const CheckedConfig checked = check_config(text, "conf", {.world_size = {}, .hidden_size = 1024});
      check_messages(checked);
      bool named = false;
      for (const std::string& error : errors_in(checked)) {
        named = named || is_at_or_in(error, path);
        CHECK(is_about_both(error, path));
      }
      if (fact->type == KeyType::boolean && value == "[]") CHECK(named);
      if (fact->type == KeyType::section && value == "true") CHECK(named);
      refused += named ? 1 : 0;
    }
  }
  // Most keys accept few of these values.
  CHECK(refused > 4000);
}

TEST_CASE("with any JSON value at any key a run starts, or says why not as a check does") {
  for (const KeyFact* fact : key_facts()) {
    const auto steps = split(std::string(fact->path), '.');
    for (const std::string& value : hostile_values()) {
      INFO(fact->path << ": " << value.substr(0, 200));
      const std::string text = Draft().put({"train_micro_batch_size_per_gpu"}, "1").put(steps, value).text();
      const auto found = refusals(text);
      for (const Refusal& refusal : found) CHECK(refusal.path.size() <= longest_message);
      if (value.find("\"auto\"") != std::string::npos) continue;  // a run needs a value, a check does not
      CHECK(found.empty() != check_config(text, "conf", {.world_size = 1}).refused());
    }
  }
}

TEST_CASE("deep nesting is refused where it becomes too deep") {
  for (const std::string open : {"[", "{\"a\":"}) {
    const CheckedConfig checked = check_config("{\"a\": " + repeated(open, 100000), "conf");
    const auto messages = checked.diagnostics.messages();
    REQUIRE(messages.size() == 1);
    CHECK(messages[0].severity == Severity::error);
    CHECK_THAT(messages[0].text, Catch::Contains("at most 100 levels of nesting"));
    CHECK(messages[0].at().offset == 6 + 99 * open.size());
    check_messages(checked);
  }
}

TEST_CASE("a file of more than 16 MiB is refused, for any content and length") {
  const TemporaryFolder folder;
  const std::size_t limit = 16 << 20;
  for (const std::size_t size : {limit + 1, std::size_t{100} << 20}) {
    const auto file = folder.write("long.json", "{\"");
    std::filesystem::resize_file(file, size);
    CHECK_THAT(user_error([&] { read_config_file(file); }),
               Catch::StartsWith(file.string() + ": ") && Catch::Contains("more than 16 MiB"));
  }
  const auto file = folder.write("just.json", "{\"");
  std::filesystem::resize_file(file, limit);
  CHECK(read_config_file(file).size() == limit);
  CHECK_THAT(user_error([] { read_config_file("/dev/zero"); }), Catch::Contains("more than 16 MiB"));
}

/// Returns a configuration of `count` keys whose names are `stem` and a number.
std::string many_keys(const std::string& stem, int count, const std::string& value) {
  std::string text = "{\"train_batch_size\": 1";
  for (int i = 0; i < count; ++i) text += ", \"" + stem + std::to_string(i) + "\": " + value;
  return text + "}";
}

TEST_CASE("of very many mistakes the first are reported, and the others are counted") {
  const int count = 20000;
  const CheckedConfig checked = check_config(many_keys("gradient_cliping", count, "1"), "conf");
  const auto messages = checked.diagnostics.messages();
  CHECK(messages.size() == most_messages);
  CHECK(checked.diagnostics.left_out(Severity::error) == count - most_messages);
  CHECK(checked.diagnostics.left_out(Severity::warning) == 0);
  CHECK(messages.front().mistake.path == "gradient_cliping0");
  CHECK(messages.back().mistake.path == "gradient_cliping" + std::to_string(most_messages - 1));
  CHECK_THAT(user_error([&] { checked.diagnostics.throw_if_any(); }),
             Catch::EndsWith("\nconf: and 19000 more errors"));
  const CheckedConfig eased =
      check_config(many_keys("leftover_of_another_program_", count, "1"), "conf", {.compat = true});
  // With compat, an unknown key becomes a warning unless it looks like a typo. After 1000 warnings the reader
  // does not look for typos any more, and the other unknown keys stay errors.
  CHECK(eased.diagnostics.messages().size() == 2 * most_messages);
  CHECK(eased.diagnostics.left_out(Severity::error) == count - 2 * most_messages);
}

TEST_CASE("every repetition of a key is an error, and very many remarks are accepted") {
  std::string text = "{";
  for (int i = 0; i < 20000; ++i) text += "\"train_batch_size\": 1, ";
  const CheckedConfig checked = check_config(text + "}", "conf");
  CHECK(checked.diagnostics.messages().size() + checked.diagnostics.left_out(Severity::error) == 19999);
  CHECK(check_config(many_keys("_", 20000, "[{}]"), "conf").diagnostics.messages().empty());
}

}  // namespace
}  // namespace zerorun::test
