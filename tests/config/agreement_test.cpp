// Tests that the JSON Schema, `zerorun config check` and a run give the same verdict on generated
// configurations.
//
// The reader checks more than a schema can express. So the generator never makes:
//   - text that is not plain JSON (with comments or trailing commas), or that has duplicate keys;
//   - nesting deeper than the reader allows, or files larger than it allows;
//   - integers near the limits of 64 bits (a schema compares them as doubles), or larger integers in quotes;
//   - a min_loss_scale above 2 to the power of initial_scale_power;
//   - batch sizes that are no multiples of each other;
//   - numbers that a double cannot hold exactly: 1e-400, or an integer plus a tiny fraction.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "base/error.h"
#include "config/check.h"
#include "config/config.h"
#include "config/schema.h"
#include "config_generator.h"

namespace zerorun::test {
using namespace config;
namespace {

class SchemaJudge {
 public:
  SchemaJudge() : json_(nlohmann::json::parse(config_schema())) {
    valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(json_), schema_);
  }

  bool refuses(const std::string& text) {
    const auto document = nlohmann::json::parse(text);
    return !validator_.validate(schema_, valijson::adapters::NlohmannJsonAdapter(document), nullptr);
  }

 private:
  nlohmann::json json_;
  valijson::Schema schema_;
  valijson::Validator validator_;
};

std::string told(const CheckedConfig& checked) {
  std::string text;
  for (const Diagnostic& diagnostic : checked.diagnostics.messages())
    text += checked.diagnostics.headline(diagnostic) + "\n";
  return text.empty() ? "nothing" : text;
}

bool run_refuses(const std::string& text) {
  try {
    parse_config(text, "generated", 1);
  } catch (const UserError&) {
    return true;
  }
  return false;
}

TEST_CASE("a check and a run on one rank agree on generated configurations without \"auto\"") {
  int refused = 0;
  int taken = 0;
  generate_configs([&](const std::string& text) {
    if (text.find("\"auto\"") != std::string::npos) return;  // a run needs a value, a check does not
    const CheckedConfig checked = check_config(text, "generated", {.world_size = 1});
    ++(checked.refused() ? refused : taken);
    if (run_refuses(text) == checked.refused()) return;
    FAIL_CHECK("a run " << (checked.refused() ? "takes " : "refuses ") << text << "\nwhere a check tells:\n"
                        << told(checked));
  });
  CHECK(refused > 1000);
  CHECK(taken > 1000);
}

TEST_CASE("the schema and the reader agree on generated configurations") {
  SchemaJudge schema;
  int valid = 0;
  int invalid = 0;
  generate_configs([&](const std::string& text) {
    const CheckedConfig checked = check_config(text, "generated");
    ++(checked.refused() ? invalid : valid);
    if (schema.refuses(text) == checked.refused()) return;
    FAIL_CHECK("the schema " << (checked.refused() ? "takes" : "refuses") << " " << text
                             << "\nwhere the reader tells:\n"
                             << told(checked));
  });
  const int all = valid + invalid;
  INFO(valid << " valid, " << invalid << " invalid");
  CHECK(all >= 2000);
  CHECK(5 * valid >= all);
  CHECK(4 * invalid >= all);
}

}  // namespace
}  // namespace zerorun::test
