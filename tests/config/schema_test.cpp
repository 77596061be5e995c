// Tests that the repository has the schema and the reference page that the key table generates, and that the
// schema and the reader accept the same values of each key.
#include "config/schema.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "config/check.h"
#include "config/key_table.h"
#include "config/leftovers.h"
#include "config/reference.h"
#include "config/value_check.h"
#include "config_draft.h"

namespace zerorun::test {
using namespace config;
namespace {

std::string read_source(const std::string& path) {
  std::ifstream stream(std::filesystem::path(ZERORUN_SOURCE_DIR) / path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

/// Returns the number of the first line in which two texts differ. A failed check shows this number, because
/// the texts are too long to be shown.
int first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a);
  std::istringstream lines_b(b);
  std::string line_a;
  std::string line_b;
  for (int line = 1;; ++line) {
    const bool more_a = static_cast<bool>(std::getline(lines_a, line_a));
    const bool more_b = static_cast<bool>(std::getline(lines_b, line_b));
    if (!more_a || !more_b || line_a != line_b) return line;
  }
}

void check_made_from_table(const std::string& path, const std::string& made, const std::string& command) {
  const std::string kept = read_source(path);
  if (kept == made) return;
  FAIL(path << " is not what the key table makes, from line " << first_difference(kept, made)
            << " on; run: " << command << " > " << path);
}

TEST_CASE("schemas/ds_config.schema.json is made from the key table") {
  check_made_from_table("schemas/ds_config.schema.json", config_schema(), "zerorun config schema");
}

TEST_CASE("docs/ds_config.md is made from the key table") {
  check_made_from_table("docs/ds_config.md", config_reference(), "zerorun config reference");
}

/// Returns the schema of the key at `path`, or null if there is none.
const nlohmann::json* find_in(const nlohmann::json& schema, std::string_view path) {
  const std::string_view name = path.substr(0, path.find('.'));
  const auto found = schema.find("properties");
  if (found == schema.end()) return nullptr;
  const auto key = found->find(std::string(name));
  if (key == found->end()) return nullptr;
  if (name.size() == path.size()) return &*key;
  return find_in(*key, path.substr(name.size() + 1));
}

TEST_CASE("the schema has the meaning and the default of every key") {
  const auto schema = nlohmann::json::parse(config_schema());
  REQUIRE(key_facts().size() > 200);
  for (const KeyFact* fact : key_facts()) {
    INFO(fact->path);
    const nlohmann::json* key = find_in(schema, fact->path);
    REQUIRE(key);
    CHECK(key->value("description", "").size() >= fact->meaning.size());
    const bool has_default = !fact->fallback.empty() && fact->status != KeyStatus::replaced;
    if (has_default) CHECK(key->value("default", nlohmann::json()) == nlohmann::json::parse(fact->fallback));
    if (fact->other_name.empty()) continue;
    CHECK(find_in(schema, join_path(section_of(fact->path), fact->other_name)));
  }
}

class Judge {
 public:
  explicit Judge(nlohmann::json schema) : json_(std::move(schema)) {
    valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(json_), schema_);
  }

  bool takes(const nlohmann::json& value) {
    return validator_.validate(schema_, valijson::adapters::NlohmannJsonAdapter(value), nullptr);
  }

 private:
  nlohmann::json json_;
  valijson::Schema schema_;
  valijson::Validator validator_;
};

/// Whether the reader accepts the value of the key as it stands, not only with a warning about its quotes, or
/// about 1 and 0 for true and false.
bool reader_takes(const KeyFact& fact, const std::string& literal) {
  const std::string text = "{\"value\": " + literal + "}";
  Diagnostics diagnostics("literal", text);
  const ValueCheck check = check_value(fact, read_document(text, diagnostics)->members.front().value);
  const auto* choice = std::get_if<std::string>(&check.value);
  const auto advises = [&](const char* what) { return check.understood.find(what) != std::string::npos; };
  return check.fit != Fit::refused && !advises("without the quotes") && !advises(": write true") &&
         !advises(": write false") && !(choice && has_word(fact.unsupported_choices, *choice)) &&
         fact.status != KeyStatus::replaced;
}

TEST_CASE("the schema and the reader accept the same values of each key") {
  const auto schema = nlohmann::json::parse(config_schema());
  int taken = 0;
  int refused = 0;
  for (const KeyFact* fact : key_facts()) {
    Judge judge(*find_in(schema, fact->path));
    for (const std::string& literal : literals_for(*fact)) {
      // Objects of sections have members to judge, and fp32_allreduce may be false as a leftover.
      if (fact->type == KeyType::section && literal.starts_with("{\"")) continue;
      if (fact->path == "fp32_allreduce" && literal == "false") continue;
      const bool takes = reader_takes(*fact, literal);
      ++(takes ? taken : refused);
      if (judge.takes(nlohmann::json::parse(literal)) == takes) continue;
      FAIL_CHECK("the schema " << (takes ? "refuses " : "takes ") << fact->path << ": " << literal);
    }
  }
  CHECK(taken > 2000);
  CHECK(refused > 5000);
}

TEST_CASE("the schema refuses unknown keys, and accepts remarks and leftovers") {
  Judge judge(nlohmann::json::parse(config_schema()));
  const auto takes = [&](const char* text) { return judge.takes(nlohmann::json::parse(text)); };
  CHECK(takes(
      R"({"$schema": "x", "_why": 1, "zero_optimization": {"//": [], "stage": 3}, "amp": {"key": 1}})"));
  CHECK(!takes(R"({"gradient_cliping": 1})"));
  CHECK(!takes(R"({"zero_optimization": {"stgae": 1}})"));
  CHECK(takes(R"({"fp32_allreduce": false, "bfloat16": {"loss_scale": 0}})"));
  CHECK(!takes(R"({"fp32_allreduce": true})"));
  for (const Leftover& leftover : leftovers()) {
    for_each_word(leftover.names, [&](std::string_view name) {
      Draft draft;
      if (leftover.section.empty()) draft.put({std::string(name)}, "false");
      if (!leftover.section.empty()) draft.put({std::string(leftover.section), std::string(name)}, "false");
      INFO(draft.text());
      CHECK(takes(draft.text().c_str()));
      CHECK(config_reference().find("`" + std::string(name) + "`") != std::string::npos);
    });
  }
}

TEST_CASE("the schema accepts the public configurations that the reader accepts without a warning") {
  Judge judge(nlohmann::json::parse(config_schema()));
  int accepted = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(ZERORUN_SOURCE_DIR "/tests/config/data/real_configs")) {
    if (file.path().extension() != ".json") continue;
    const std::string text = read_config_file(file.path());
    const CheckedConfig checked = check_config(text, "conf");
    if (checked.refused() || checked.diagnostics.any(Severity::warning)) continue;
    const auto document = nlohmann::json::parse(text, nullptr, false, true);
    if (document.is_discarded()) continue;  // it has trailing commas
    INFO(file.path());
    CHECK(judge.takes(document));
    ++accepted;
  }
  CHECK(accepted > 80);
}

TEST_CASE("the reference page has a row or a section for every key") {
  const std::string page = config_reference();
  for (const KeyFact* fact : key_facts()) {
    INFO(fact->path);
    const std::string path(fact->path);
    if (fact->type == KeyType::section) {
      CHECK(page.find("# `" + path + "`\n") != std::string::npos);
      continue;
    }
    const std::string section(section_of(fact->path));
    const auto start =
        section.empty() ? page.find("## Keys of the top level") : page.find("# `" + section + "`\n");
    REQUIRE(start != std::string::npos);
    const auto end = page.find("\n#", start);
    const auto row = page.find("\n| `" + std::string(name_of(fact->path)) + "`", start);
    CHECK(row < end);
  }
}

}  // namespace
}  // namespace zerorun::test
