// Tests that the repository has the schema and the reference page that the key table generates.
#include "config/schema.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "config/key_table.h"
#include "config/reference.h"

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
  const bool own = name == "*";
  const auto found = own ? schema.find("additionalProperties") : schema.find("properties");
  if (found == schema.end()) return nullptr;
  const auto key = own ? found : found->find(std::string(name));
  if (!own && key == found->end()) return nullptr;
  if (name.size() == path.size()) return &*key;
  return find_in(*key, path.substr(name.size() + 1));
}

TEST_CASE("the schema has the meaning and the default of every key") {
  const auto schema = nlohmann::json::parse(config_schema());
  REQUIRE(key_facts().size() > 300);
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
