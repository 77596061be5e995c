// The JSON Schema and the reader give the same verdict on every generated configuration.
//
// The reader knows more than a schema can say. What the generator therefore never makes:
//   - text that is no JSON, or that is not plain JSON (comments, trailing commas), and duplicate keys;
//   - nesting deeper than the reader allows, and files larger than it reads;
//   - integers at the edge of 64 bits, which a schema compares as doubles, and digits in quotes beyond that
//   edge;
//   - a min_loss_scale above 2 to the power of initial_scale_power;
//   - numbers with so many digits that a double holds another number: 1e-400, or an integer and a tiny
//   fraction.
// Batch sizes are not multiplied by check_config without a number of ranks, so any three are valid here.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "config/check.h"
#include "config/schema.h"
#include "config_generator.h"

namespace zerorun::test {
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
  for (const Finding& finding : checked.diagnostics.findings())
    text += checked.diagnostics.headline(finding) + "\n";
  return text.empty() ? "nothing" : text;
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
  CHECK(4 * valid >= all);
  CHECK(4 * invalid >= all);
}

}  // namespace
}  // namespace zerorun::test
