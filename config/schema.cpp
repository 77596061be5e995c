#include "config/schema.h"

#include <cctype>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "config/key_table.h"
#include "config/key_words.h"
#include "config/leftovers.h"

namespace zerorun::config {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view about =
    "Configuration of a training run, read by DeepSpeed and by ZeroRun. Integers may be written as 5e8 or "
    "2.0. \"auto\", where a key accepts it, stands for a value from the program, from the model or from the "
    "default. Keys that begin with _, # or //, and comment, comments and $schema, are remarks. Unlike JSON, "
    "a file may have comments (//, # and /* */) and trailing commas. The schema has the type, the range and "
    "the words of each key. `zerorun config check` also knows the rules between keys.";

constexpr std::string_view remark_pattern = "^(_|#|//|comment$|comments$|\\$schema$)";

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
  if (std::isfinite(range.min)) schema["minimum"] = number_of(range.min);
  if (std::isfinite(range.max))
    schema[range.below_max ? "exclusiveMaximum" : "maximum"] = number_of(range.max);
}

/// Adds the range of the key, limited to the range of int64_t.
void add_integer_range(const ValueRange& range, Json& schema) {
  add_range(range, schema);
  if (!std::isfinite(range.min)) schema["minimum"] = std::numeric_limits<int64_t>::min();
  if (!std::isfinite(range.max)) schema["maximum"] = std::numeric_limits<int64_t>::max();
}

Json json_list(std::string_view words) {
  Json list = Json::array();
  for_each_word(words, [&](std::string_view word) { list.push_back(word); });
  return list;
}

std::string in_any_case(std::string_view word) {
  std::string pattern;
  for (const char c : word) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalpha(letter)) {
      pattern += {'[', static_cast<char>(std::toupper(letter)), static_cast<char>(std::tolower(letter)), ']'};
    } else {
      pattern += c;
    }
  }
  return pattern;
}

/// Returns a regular expression that matches any of `words` in any case of its letters.
std::string pattern_in_any_case(std::string_view words) {
  std::string pattern;
  for_each_word(words,
                [&](std::string_view word) { pattern += (pattern.empty() ? "" : "|") + in_any_case(word); });
  return "^(" + pattern + ")$";
}

void add_choices(const KeyFact& fact, Json& schema) {
  Json forms = Json::array();
  const std::string supported = supported_choices(fact);
  forms.push_back({{"enum", json_list(supported)}});
  const std::string any_case = supported_in_any_case(fact);
  if (!any_case.empty()) {
    forms.push_back({{"description", "In any case of its letters."},
                     {"type", "string"},
                     {"pattern", pattern_in_any_case(any_case)}});
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
  Json schema = {{"items", std::move(items)}};
  if (fact.length > 0) schema["minItems"] = schema["maxItems"] = fact.length;
  return schema;
}

/// Adds the constraints on the value of a key that is not a section.
void add_value(const KeyFact& fact, Json& schema) {
  if (fact.type == KeyType::choice) return add_choices(fact, schema);
  if (fact.type == KeyType::anything) return;
  Json types = json_list(words_of(fact.type).json);
  Json limits = Json::object();
  if (fact.is_integer()) {
    // The schema describes an integer as {"type": "number", "multipleOf": 1.0}. With "type": "integer" some
    // validators refuse 2.0, and with "multipleOf": 1 (written without .0) some accept 2.5.
    if (fact.type == KeyType::integer) limits["multipleOf"] = 1.0;
    add_integer_range(fact.range, limits);
  } else if (fact.type == KeyType::number) {
    add_range(fact.range, limits);
  } else if (fact.type == KeyType::number_list) {
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
    types.push_back("string");
    limits["pattern"] = "^auto$";
    schema["examples"] = {"auto"};
  }
  if (fact.nullable) types.push_back("null");
  schema["type"] = types.size() == 1 ? types.front() : types;
  schema.update(limits);
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
  return schema;
}

/// Returns the key's schema for its other name, with an adapted description.
Json other_name_schema(const KeyFact& fact) {
  Json schema = key_schema(fact);
  schema["description"] =
      "Another name of " + std::string(name_of(fact.path)) + ". " + schema["description"].get<std::string>();
  return schema;
}

/// Adds the keys of other programs that have no effect in this section.
void add_leftovers(std::string_view section, Json& properties) {
  for (const Leftover& leftover : leftovers()) {
    if (leftover.section != section) continue;
    for_each_word(leftover.names, [&](std::string_view name) {
      Json& schema = properties[std::string(name)];
      schema["deprecationMessage"] = sentence("no effect: " + std::string(leftover.reason));
      if (!leftover.only_false) return;
      schema.erase("not");  // the key's row accepts no value
      schema["enum"] = {false};
    });
  }
}

void add_members(std::string_view section, Json& schema) {
  Json properties = Json::object();
  schema["patternProperties"][std::string(remark_pattern)] = Json::object();
  schema["additionalProperties"] = false;
  for (const KeyFact* fact : facts_in(section)) {
    properties[std::string(name_of(fact->path))] = key_schema(*fact);
    if (!fact->other_name.empty()) properties[std::string(fact->other_name)] = other_name_schema(*fact);
  }
  const KeyFact* fact = find_key(section);
  add_leftovers(fact && fact->status == KeyStatus::old_name ? fact->target : section, properties);
  if (!properties.empty()) schema["properties"] = std::move(properties);
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
  add_members("", schema);
  return schema.dump(2) + "\n";
}

}  // namespace zerorun::config
