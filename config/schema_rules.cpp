#include "config/schema_rules.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "base/error.h"
#include "config/key_table.h"
#include "config/key_words.h"

namespace zerorun {
namespace {

using Json = nlohmann::ordered_json;

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

/// A schema that holds if `value` holds for the key `path`, or the object has no such key. Dots in `path`
/// lead into inner objects.
Json where_present(std::string_view path, Json value) {
  const auto dot = path.find('.');
  if (dot != std::string_view::npos) value = where_present(path.substr(dot + 1), std::move(value));
  return {{"properties", {{std::string(path.substr(0, dot)), std::move(value)}}}};
}

/// The same, but the object must have the key.
Json has_key(std::string_view path, Json value = Json::object()) {
  const auto dot = path.find('.');
  const std::string name(path.substr(0, dot));
  Json schema = {{"type", "object"}, {"required", {name}}};
  if (dot != std::string_view::npos) value = has_key(path.substr(dot + 1), std::move(value));
  if (!value.empty()) schema["properties"][name] = std::move(value);
  return schema;
}

Json not_both(std::string_view one, std::string_view other) {
  return {{"not", {{"allOf", {has_key(one), has_key(other)}}}}};
}

/// A file may use one name of a key: its own, its other name, or its old one. An old name may stand for a key
/// in a subsection of its own section.
void add_name_rules(std::string_view section, std::vector<Json>& rules) {
  const std::string inside = join_path(section, "");
  for (const KeyFact* fact : key_facts()) {
    if (section_of(fact->path) != section) continue;
    if (!fact->other_name.empty()) rules.push_back(not_both(name_of(fact->path), fact->other_name));
    if (fact->status != KeyStatus::old_name || !fact->target.starts_with(inside)) continue;
    const KeyFact* present = find_key(fact->target);
    ZR_CHECK(present, "no row for " + std::string(fact->target));
    const std::string_view target = fact->target.substr(inside.size());
    rules.push_back(not_both(name_of(fact->path), target));
    if (!present->other_name.empty()) {
      rules.push_back(not_both(name_of(fact->path), join_path(section_of(target), present->other_name)));
    }
    for (const KeyFact* other : key_facts()) {
      if (other == fact) break;
      const bool same = other->status == KeyStatus::old_name && other->target == fact->target;
      if (same && section_of(other->path) == section) {
        rules.push_back(not_both(name_of(other->path), name_of(fact->path)));
      }
    }
  }
}

/// Refuses parameters of one type beside another type. Without a type all are allowed.
void add_type_rules(std::string_view section, std::vector<Json>& rules) {
  const KeyFact* type = find_key(join_path(section, "type"));
  const std::string params = join_path(section, "params");
  std::vector<std::string_view> lists;  // of types, in the order of the table
  std::map<std::string_view, Json> names;
  for (const KeyFact* fact : key_facts()) {
    if (section_of(fact->path) != params || fact->types.empty()) continue;
    if (names.count(fact->types) == 0) lists.push_back(fact->types);
    names[fact->types].push_back(name_of(fact->path));
    if (!fact->other_name.empty()) names[fact->types].push_back(fact->other_name);
  }
  for (const std::string_view list : lists) {
    ZR_CHECK(type, "no row for the type beside " + params);
    Json rule;
    rule["if"]["properties"]["type"]["pattern"] = choice_pattern(*type, list);
    rule["else"]["properties"]["params"]["propertyNames"]["not"]["enum"] = names[list];
    rules.push_back(std::move(rule));
  }
}

/// A schema for objects in which the `enabled` of `section` is one of `values`; with "auto" among them, the
/// section could be on.
Json switched_on(std::string_view section, Json values) {
  return has_key(join_path(section, "enabled"), {{"enum", std::move(values)}});
}

/// The sections around a key that have the switch `enabled`, unless the key itself is that switch.
std::vector<std::string_view> sections_with_switch(std::string_view path) {
  std::vector<std::string_view> sections;
  for (auto section = section_of(path); !section.empty(); section = section_of(section)) {
    const KeyFact* outer = find_key(section);
    if (outer->switch_key == "enabled" && path != join_path(section, "enabled")) sections.push_back(section);
  }
  return sections;
}

/// While all sections around a refused key are on, its value must request nothing.
void add_refusals(std::vector<Json>& rules) {
  for (const KeyFact* fact : key_facts()) {
    if (!fact->changes_result || !has_outer_switch(*fact)) continue;
    Json all_on = Json::array();
    for (const std::string_view section : sections_with_switch(fact->path)) {
      all_on.push_back(switched_on(section, {true, "true"}));
    }
    rules.push_back({{"if", {{"allOf", std::move(all_on)}}},
                     {"then", where_present(fact->path, asks_for_nothing(*fact))}});
  }
}

/// One of the two keys is required, and null does not count.
void add_batch_rule(std::vector<Json>& rules) {
  Json sizes = Json::array();
  for (const std::string_view key : {"train_batch_size", "train_micro_batch_size_per_gpu"}) {
    sizes.push_back(has_key(key, {{"not", {{"type", "null"}}}}));
  }
  rules.push_back({{"anyOf", std::move(sizes)}});
}

/// `parameters` and `gradients`: the values allowed for data_types.param_dtype and grad_accum_dtype.
Json with_data_types(Json parameters, Json gradients) {
  Json types;
  types["param_dtype"]["enum"] = std::move(parameters);
  types["grad_accum_dtype"]["enum"] = std::move(gradients);
  return {{"properties", {{"data_types", {{"properties", std::move(types)}}}}}};
}

void add_precision_rules(std::vector<Json>& rules) {
  const Json on = {true, "true"};
  const Json open = {true, "true", "auto"};
  Json any_open = Json::array();
  for (const std::string_view name : {"fp16", "bf16", "bfloat16"}) {
    const std::string_view dtype = name == "fp16" ? "fp16" : "bf16";
    any_open.push_back(switched_on(name, open));
    if (name != "fp16")
      rules.push_back({{"not", {{"allOf", {switched_on("fp16", on), switched_on(name, on)}}}}});
    rules.push_back({{"if", switched_on(name, on)},
                     {"then", with_data_types({dtype, nullptr}, {"fp32", dtype, nullptr})}});
  }
  rules.push_back({{"if", {{"not", {{"anyOf", std::move(any_open)}}}}},
                   {"then", with_data_types({"fp32", nullptr}, {"fp32", nullptr})}});
}

constexpr std::string_view nothing_divides_a_sum = R"({
  "if": {
    "type": "object", "required": ["gradient_allreduce_op"],
    "properties": {"gradient_allreduce_op": {"type": "string", "pattern": "OP"}}
  },
  "then": {
    "properties": {
      "prescale_gradients": {"enum": [false, "false"]},
      "gradient_predivide_factor": {"minimum": 1, "maximum": 1}
    }
  }
})";

constexpr std::string_view folder_beside_nvme = R"({
  "if": {"type": "object", "required": ["device"], "properties": {"device": {"enum": ["nvme"]}}},
  "then": {"required": ["nvme_path"], "properties": {"nvme_path": {"type": "string"}}}
})";

constexpr std::string_view scaling_while_training = R"({
  "if": {
    "type": "object", "required": ["enabled"],
    "properties": {"enabled": {"enum": [true, "true"]}, "loss_scale": {"minimum": 0, "maximum": 0}}
  },
  "then": {
    "properties": {
      "loss_scale_window": {"minimum": 1, "not": {"enum": ["0"]}},
      "hysteresis": {"minimum": 1, "not": {"enum": ["0"]}},
      "min_loss_scale": {"minimum": 1, "not": {"enum": ["0"]}}
    }
  }
})";

constexpr std::string_view fixed_scale = R"({
  "if": {"type": "object", "required": ["enabled"], "properties": {"enabled": {"enum": [true, "true"]}}},
  "then": {"properties": {"loss_scale": {"anyOf": [{"maximum": 0}, {"minimum": 1e-06}]}}}
})";

constexpr std::string_view ratio_at_stage_3 = R"({
  "if": {
    "type": "object", "required": ["offload_optimizer"],
    "properties": {
      "offload_optimizer": {
        "type": "object", "required": ["ratio"], "properties": {"ratio": {"type": "number", "exclusiveMaximum": 1}}
      }
    }
  },
  "then": {"required": ["stage"], "properties": {"stage": {"minimum": 3, "not": {"enum": ["0", "1", "2"]}}}}
})";

constexpr std::string_view momentum_beside_nesterov = R"({
  "if": {
    "type": "object", "required": ["type", "params"],
    "properties": {
      "type": {"pattern": "TYPE"},
      "params": {"type": "object", "required": ["nesterov"], "properties": {"nesterov": {"enum": [true, "true"]}}}
    }
  },
  "then": {
    "properties": {
      "params": {
        "required": ["momentum"],
        "properties": {"momentum": {"exclusiveMinimum": 0}, "dampening": {"minimum": 0, "maximum": 0}}
      }
    }
  }
})";

constexpr std::string_view correction_beside_torch_adam = R"({
  "if": {
    "type": "object", "required": ["type", "params"],
    "properties": {
      "type": {"pattern": "TYPE"},
      "params": {
        "type": "object", "required": ["torch_adam"], "properties": {"torch_adam": {"enum": [true, "true"]}}
      }
    }
  },
  "then": {"properties": {"params": {"properties": {"bias_correction": {"enum": [true, "true"]}}}}}
})";

constexpr std::string_view total_beside_decay = R"({
  "if": {"type": "object", "required": ["type"], "properties": {"type": {"pattern": "TYPE"}}},
  "then": {"required": ["params"], "properties": {"params": {"required": ["total_num_steps"]}}}
})";

constexpr std::string_view bounds_of_cycle = R"({
  "if": {"type": "object", "required": ["type"], "properties": {"type": {"pattern": "TYPE"}}},
  "then": {"required": ["params"], "properties": {"params": {"required": ["cycle_min_lr", "cycle_max_lr"]}}}
})";

/// `text` with every `name` replaced by `value`.
Json rule_with(std::string_view text, std::string_view name, std::string_view value) {
  std::string rule(text);
  for (auto at = rule.find(name); at != std::string::npos; at = rule.find(name, at + value.size())) {
    rule.replace(at, name.size(), value);
  }
  return Json::parse(rule);
}

Json rule_for_types(std::string_view text, std::string_view section, std::string_view types) {
  const KeyFact* type = find_key(join_path(section, "type"));
  ZR_CHECK(type, "no row for the type of " + std::string(section));
  return rule_with(text, "TYPE", choice_pattern(*type, types));
}

/// The rules of config/sections.h, as far as a schema can express them: it cannot compare a min_loss_scale
/// with 2 to the power of another key.
void add_combination_rules(std::string_view section, std::vector<Json>& rules) {
  if (section.empty()) {
    add_batch_rule(rules);
    add_precision_rules(rules);
    add_refusals(rules);
    const KeyFact* op = find_key("gradient_allreduce_op");
    ZR_CHECK(op, "no row for gradient_allreduce_op");
    rules.push_back(rule_with(nothing_divides_a_sum, "OP", choice_pattern(*op, "sum")));
  } else if (section == "optimizer") {
    rules.push_back({{"required", {"type"}}});
    rules.push_back(rule_for_types(momentum_beside_nesterov, section, "SGD"));
    rules.push_back(rule_for_types(correction_beside_torch_adam, section, "Adam AdamW"));
  } else if (section == "scheduler") {
    rules.push_back({{"required", {"type"}}});
    rules.push_back(rule_for_types(total_beside_decay, section, "WarmupDecayLR WarmupCosineLR"));
    rules.push_back(rule_for_types(bounds_of_cycle, section, "OneCycle"));
  } else if (section == "fp16") {
    rules.push_back(Json::parse(fixed_scale));
    rules.push_back(Json::parse(scaling_while_training));
  } else if (section == "zero_optimization") {
    rules.push_back(Json::parse(ratio_at_stage_3));
  } else if (section == "zero_optimization.offload_optimizer" ||
             section == "zero_optimization.offload_param") {
    rules.push_back(Json::parse(folder_beside_nvme));
  }
}

}  // namespace

Json asks_for_nothing(const KeyFact& refused) {
  const std::string fallback(refused.fallback);
  const bool automatic = refused.automatic != Automatic::nobody;
  switch (refused.type) {
    case KeyType::boolean: {
      Json values = {Json::parse(fallback), fallback};
      if (automatic) values.push_back("auto");
      return {{"enum", std::move(values)}};
    }
    case KeyType::integer: {
      const Json value = Json::parse(fallback);
      return {{"minimum", value}, {"maximum", value}, {"pattern", "^" + fallback + "$"}};
    }
    case KeyType::object: {
      if (!refused.switch_key.empty()) return {{"allOf", {{{"$ref", "#/definitions/nothing_enabled"}}}}};
      return {{"anyOf", {{{"maxProperties", 0}}, has_key("enabled", {{"enum", {false, "false"}}})}}};
    }
    default:
      ZR_CHECK(refused.type == KeyType::section, "no schema without " + std::string(refused.path));
      return refused.nullable ? Json{{"type", "null"}} : Json{{"not", Json::object()}};
  }
}

bool has_outer_switch(const KeyFact& fact) {
  return !sections_with_switch(fact.path).empty();
}

std::string choice_pattern(const KeyFact& choice, std::string_view words) {
  std::string pattern;
  for_each_word(words, [&](std::string_view word) {
    pattern += pattern.empty() ? "" : "|";
    pattern += has_word(choice.any_case, word) ? in_any_case(word) : std::string(word);
  });
  return "^(" + pattern + ")$";
}

std::vector<Json> section_rules(std::string_view section) {
  std::vector<Json> rules;
  add_name_rules(section, rules);
  add_type_rules(section, rules);
  add_combination_rules(section, rules);
  return rules;
}

}  // namespace zerorun
