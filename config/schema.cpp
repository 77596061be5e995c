#include "config/schema.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/key_table.h"
#include "config/key_words.h"
#include "config/schema_rules.h"

namespace zerorun::config {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view about =
    "Configuration of a training run, read by DeepSpeed and by ZeroRun. Integers may be written as 5e8 or "
    "2.0. Integers and booleans in double quotes are accepted with a warning. \"auto\", where a key accepts "
    "it, stands for a value from the program, from the model or from the default. Keys that begin with _, # "
    "or //, and comment, comments and $schema, are remarks. Unlike JSON, a file may have comments (//, # and "
    "/* */) and trailing commas.";

constexpr std::string_view remark_pattern = "^(_|#|//|comment$|comments$|\\$schema$)";

// Matches keys chosen by the user. They must not contain dots, so that they cannot look like a path.
constexpr std::string_view own_key_pattern = "^([^.*][^.]*|\\*[^.]+)$";

constexpr int most_digits = 19;  // digits of a 64-bit integer, at most

/// Returns whole numbers as integers, because 500000000 is easier to read than 500000000.0.
Json number_of(double value) {
  if (value == std::floor(value) && std::abs(value) < 0x1p53) return static_cast<int64_t>(value);
  return value;
}

Json fallback_of_key(const KeyFact& fact) {
  Json fallback = Json::parse(fact.fallback);
  if (fact.is_integer() && fallback.is_number_float()) return number_of(fallback.get<double>());
  return fallback;
}

void add_range(const ValueRange& range, Json& schema) {
  if (std::isfinite(range.min))
    schema[range.above_min ? "exclusiveMinimum" : "minimum"] = number_of(range.min);
  if (std::isfinite(range.max))
    schema[range.below_max ? "exclusiveMaximum" : "maximum"] = number_of(range.max);
}

/// Adds the range of the key, limited to the range of int64_t.
void add_integer_range(const ValueRange& range, Json& schema) {
  add_range(range, schema);
  if (!std::isfinite(range.min)) schema["minimum"] = std::numeric_limits<int64_t>::min();
  if (!std::isfinite(range.max)) schema["maximum"] = std::numeric_limits<int64_t>::max();
}

/// Returns a regular expression that matches the integers from `low` (0 or 1) to `high`.
std::string digits_up_to(int low, int high) {
  const std::string last = "[0-" + std::to_string(high % 10) + "]";
  if (high < 10) return low == high ? std::to_string(low) : "[" + std::to_string(low) + last.substr(2);
  const int tens = high / 10;
  const std::string fewer_tens = tens == 1 ? "" : "(" + digits_up_to(1, tens - 1) + ")[0-9]|";
  return digits_up_to(low, 9) + "|" + fewer_tens + std::to_string(tens) + last;
}

/// Returns a regular expression that matches the non-negative integers in the key's range; empty if there are
/// none.
std::string digits_pattern(const KeyFact& fact) {
  const ValueRange& range = fact.range;
  ZR_CHECK(!range.above_min && !range.below_max, "no pattern for the range of " + std::string(fact.path));
  ZR_CHECK(range.min <= 1, "no pattern for the range of " + std::string(fact.path));
  const int low = range.min > 0 ? 1 : 0;
  if (std::isfinite(range.max)) {
    ZR_CHECK(range.max <= 1e6, "no pattern for a range as large as that of " + std::string(fact.path));
    return range.max < low ? "" : digits_up_to(low, static_cast<int>(range.max));
  }
  const std::string more = "[1-9][0-9]{0," + std::to_string(most_digits - 1) + "}";
  return low == 1 ? more : "0|" + more;
}

Json json_list(std::string_view words) {
  Json list = Json::array();
  for_each_word(words, [&](std::string_view word) { list.push_back(word); });
  return list;
}

void add_choices(const KeyFact& fact, Json& schema) {
  Json forms = Json::array();
  const std::string supported = supported_choices(fact);
  forms.push_back({{"enum", json_list(supported)}});
  const std::string any_case = supported_in_any_case(fact);
  if (!any_case.empty()) {
    forms.push_back({{"description", "In any case of its letters."},
                     {"type", "string"},
                     {"pattern", choice_pattern(fact, any_case)}});
  }
  if (fact.automatic != Automatic::nobody && !has_word(fact.choices, "auto")) {
    forms.push_back({{"enum", {"auto"}}});
  }
  if (fact.nullable) forms.push_back({{"type", "null"}});
  if (forms.size() == 1) {
    schema.update(forms.front());
  } else {
    schema["anyOf"] = std::move(forms);
  }
}

Json list_of_numbers(const KeyFact& fact) {
  Json items = {{"type", "number"}};
  add_range(fact.range, items);
  if (fact.type == KeyType::integer_list) items["multipleOf"] = 1.0;
  Json schema = {{"items", std::move(items)}};
  if (fact.length > 0) schema["minItems"] = schema["maxItems"] = fact.length;
  return schema;
}

/// Returns a regular expression for integers or booleans that a file has in quotes. Empty if the key accepts
/// neither.
std::string texts_pattern(const KeyFact& fact) {
  if (fact.type == KeyType::boolean) return "true|false";
  return fact.is_integer() ? digits_pattern(fact) : "";
}

/// Adds the constraints on the value of a key that is not a section.
void add_value(const KeyFact& fact, Json& schema) {
  if (fact.type == KeyType::choice) return add_choices(fact, schema);
  if (fact.type == KeyType::anything) return;
  Json types = json_list(words_of(fact.type).json);
  std::string texts = texts_pattern(fact);
  Json limits = Json::object();
  if (fact.is_integer()) {
    // The schema describes an integer as {"type": "number", "multipleOf": 1.0}. With "type": "integer" some
    // validators refuse 2.0, and with "multipleOf": 1 (written without .0) some accept 2.5.
    if (fact.type == KeyType::integer) limits["multipleOf"] = 1.0;
    add_integer_range(fact.range, limits);
  } else if (fact.type == KeyType::number) {
    add_range(fact.range, limits);
  } else if (fact.is_list()) {
    limits = list_of_numbers(fact);
  } else if (fact.type == KeyType::text_list) {
    limits["items"] = {{"type", "string"}};
  }
  if (fact.per_group) {
    types.push_back("array");
    limits.update(list_of_numbers(fact));
    limits["minItems"] = 1;
  }
  if (fact.accepts_true) {
    types.push_back("boolean");
    limits["not"] = {{"enum", {false}}};
  }
  const bool any_text = fact.type == KeyType::text || fact.type == KeyType::text_list;
  if (fact.automatic != Automatic::nobody && !any_text) {
    texts = texts.empty() ? "auto" : "auto|" + texts;
    schema["examples"] = {"auto"};
  }
  if (!texts.empty()) types.push_back("string");
  if (fact.nullable) types.push_back("null");
  schema["type"] = types.size() == 1 ? types.front() : types;
  schema.update(limits);
  const bool several = texts.find('|') != std::string::npos;
  if (!texts.empty()) schema["pattern"] = several ? "^(" + texts + ")$" : "^" + texts + "$";
}

Json section_schema(const KeyFact& fact, Json schema);

Json key_schema(const KeyFact& fact) {
  Json schema;
  schema["description"] = description_of(fact, "");
  if (fact.status == KeyStatus::replaced) {
    schema["deprecationMessage"] = sentence(status_in_words(fact));
    schema["not"] = Json::object();
    return schema;
  }
  if (fact.status == KeyStatus::old_name) schema["deprecationMessage"] = sentence(status_in_words(fact));
  if (fact.type == KeyType::section) {
    schema = section_schema(fact, std::move(schema));
  } else {
    if (!fact.fallback.empty()) schema["default"] = fallback_of_key(fact);
    add_value(fact, schema);
  }
  if (fact.changes_result && !has_outer_switch(fact)) schema.update(asks_for_nothing(fact));
  return schema;
}

/// Returns the key's schema for its other name, with an adapted description.
Json other_name_schema(const KeyFact& fact) {
  Json schema = key_schema(fact);
  schema["description"] =
      "Another name of " + std::string(name_of(fact.path)) + ". " + schema["description"].get<std::string>();
  return schema;
}

void add_members(std::string_view section, Json& schema) {
  Json properties = Json::object();
  schema["patternProperties"][std::string(remark_pattern)] = Json::object();
  schema["additionalProperties"] = false;
  for (const KeyFact* fact : facts_in(section)) {
    if (name_of(fact->path) == "*") {
      schema["propertyNames"]["anyOf"] = {{{"pattern", remark_pattern}}, {{"pattern", own_key_pattern}}};
      schema["additionalProperties"] = key_schema(*fact);
      continue;
    }
    properties[std::string(name_of(fact->path))] = key_schema(*fact);
    if (!fact->other_name.empty()) properties[std::string(fact->other_name)] = other_name_schema(*fact);
  }
  if (!properties.empty()) schema["properties"] = std::move(properties);
  for (Json& rule : section_rules(section)) schema["allOf"].push_back(std::move(rule));
}

Json section_schema(const KeyFact& fact, Json schema) {
  schema["type"] = fact.nullable ? Json{"object", "null"} : Json("object");
  if (!fact.false_means.empty()) {
    schema["type"] = {"object", "boolean"};
    schema["not"] = {{"enum", {true}}};
  }
  add_members(fact.path, schema);
  return schema;
}

}  // namespace

std::string config_schema() {
  Json schema;
  schema["$schema"] = "http://json-schema.org/draft-07/schema#";
  schema["title"] = "ds_config.json";
  schema["description"] = about;
  schema["type"] = "object";
  schema["definitions"]["nothing_enabled"] = {
      {"properties", {{"enabled", {{"not", {{"enum", {true, "true"}}}}}}}},
      {"additionalProperties", {{"$ref", "#/definitions/nothing_enabled"}}}};
  add_members("", schema);
  return schema.dump(2) + "\n";
}

}  // namespace zerorun::config
