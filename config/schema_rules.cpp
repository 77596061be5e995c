#include "config/schema_rules.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/key_table.h"
#include "config/key_words.h"

namespace zerorun::config {
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

/// Returns a schema for objects in which the key `path` satisfies `value`, or is absent. Dots in `path` lead
/// into inner objects.
Json where_present(std::string_view path, Json value) {
  const auto dot = path.find('.');
  if (dot != std::string_view::npos) value = where_present(path.substr(dot + 1), std::move(value));
  return {{"properties", {{std::string(path.substr(0, dot)), std::move(value)}}}};
}

/// Like where_present(), but the object must have the key.
Json has_key(std::string_view path, Json value = Json::object()) {
  const auto dot = path.find('.');
  const std::string name(path.substr(0, dot));
  Json schema = {{"type", "object"}, {"required", {name}}};
  if (dot != std::string_view::npos) value = has_key(path.substr(dot + 1), std::move(value));
  if (!value.empty()) schema["properties"][name] = std::move(value);
  return schema;
}

Json all(Json schemas) {
  return {{"allOf", std::move(schemas)}};
}

Json when(Json condition, Json rule) {
  return {{"if", std::move(condition)}, {"then", std::move(rule)}};
}

/// Adds rules that forbid two names of one key in the same file.
void add_name_rules(std::string_view section, std::vector<Json>& rules) {
  for (const KeyFact* fact : facts_in(section)) {
    const std::string_view name = fact->other_name.empty() ? name_of(fact->path) : fact->other_name;
    for (const std::string& better : better_names(*fact, name)) {
      rules.push_back({{"not", all({has_key(better), has_key(name)})}});
    }
  }
}

/// Adds rules that forbid parameters that the file's type of optimizer or scheduler does not have. If the
/// file has no type, all parameters are allowed.
void add_type_rules(std::string_view section, std::vector<Json>& rules) {
  const std::string params = join_path(section, "params");
  std::vector<std::string_view> lists;  // lists of types, in table order
  std::map<std::string_view, Json> names;
  for (const KeyFact* fact : facts_in(params)) {
    if (fact->types.empty()) continue;
    if (names.count(fact->types) == 0) lists.push_back(fact->types);
    names[fact->types].push_back(name_of(fact->path));
    if (!fact->other_name.empty()) names[fact->types].push_back(fact->other_name);
  }
  for (const std::string_view list : lists) {
    Json rule;
    rule["if"]["properties"]["type"]["pattern"] = choice_pattern(row_of(join_path(section, "type")), list);
    rule["else"]["properties"]["params"]["propertyNames"]["not"]["enum"] = names[list];
    rules.push_back(std::move(rule));
  }
}

/// Returns a schema for objects in which the key `enabled` of `section` is one of `values`. Pass "auto" too,
/// to match sections that may be switched on.
Json switched_on(std::string_view section, Json values) {
  return has_key(join_path(section, "enabled"), {{"enum", std::move(values)}});
}

/// Returns the sections that contain the key and have the switch `enabled`. Omits a section if the key is its
/// switch.
std::vector<std::string_view> sections_with_switch(std::string_view path) {
  std::vector<std::string_view> sections;
  for (auto section = section_of(path); !section.empty(); section = section_of(section)) {
    const KeyFact* outer = find_key(section);
    if (outer->switch_key == "enabled" && path != join_path(section, "enabled")) sections.push_back(section);
  }
  return sections;
}

/// Adds rules for refused keys: while all sections that contain the key are on, its value must not enable the
/// feature.
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

/// `parameters` and `gradients` are the allowed values of data_types.param_dtype and
/// data_types.grad_accum_dtype.
Json with_data_types(Json parameters, Json gradients) {
  return all({where_present("data_types.param_dtype", {{"enum", std::move(parameters)}}),
              where_present("data_types.grad_accum_dtype", {{"enum", std::move(gradients)}})});
}

void add_precision_rules(std::vector<Json>& rules) {
  const Json on = {true, "true"};
  Json any_open = Json::array();
  for (const std::string_view name : {"fp16", "bf16", "bfloat16"}) {
    const std::string_view dtype = name == "fp16" ? "fp16" : "bf16";
    any_open.push_back(switched_on(name, {true, "true", "auto"}));
    if (name != "fp16") rules.push_back({{"not", all({switched_on("fp16", on), switched_on(name, on)})}});
    rules.push_back(when(switched_on(name, on), with_data_types({dtype, nullptr}, {"fp32", dtype, nullptr})));
  }
  rules.push_back(when({{"not", {{"anyOf", std::move(any_open)}}}},
                       with_data_types({"fp32", nullptr}, {"fp32", nullptr})));
}

/// Returns a schema for objects in which the key `path` of `section` has one of the values in `words`, a list
/// separated by spaces.
Json has_choice(std::string_view section, std::string_view path, std::string_view words) {
  return has_key(path,
                 {{"type", "string"}, {"pattern", choice_pattern(row_of(join_path(section, path)), words)}});
}

/// Adds the rules of config/sections.h that a schema can express. A schema cannot express that min_loss_scale
/// is at most 2 to the power of initial_scale_power.
void add_combination_rules(std::string_view section, std::vector<Json>& rules) {
  const Json on = {{"enum", {true, "true"}}};
  const Json zero = {{"minimum", 0}, {"maximum", 0}};
  const auto type_is = [&](std::string_view words) { return has_choice(section, "type", words); };
  if (section.empty()) {
    const Json given = {{"not", {{"type", "null"}}}};
    rules.push_back(
        {{"anyOf", {has_key("train_batch_size", given), has_key("train_micro_batch_size_per_gpu", given)}}});
    add_precision_rules(rules);
    add_refusals(rules);
    rules.push_back(
        when(has_choice("", "gradient_allreduce_op", "sum"),
             all({where_present("prescale_gradients", {{"enum", {false, "false"}}}),
                  where_present("gradient_predivide_factor", {{"minimum", 1}, {"maximum", 1}})})));
  } else if (section == "optimizer") {
    rules.push_back({{"required", {"type"}}});
    rules.push_back(when(all({type_is("SGD"), has_key("params.nesterov", on)}),
                         all({has_key("params.momentum", {{"exclusiveMinimum", 0}}),
                              where_present("params.dampening", zero)})));
    rules.push_back(when(all({type_is("Adam AdamW"), has_key("params.torch_adam", on)}),
                         where_present("params.bias_correction", on)));
  } else if (section == "scheduler") {
    rules.push_back({{"required", {"type"}}});
    rules.push_back(when(type_is("WarmupDecayLR WarmupCosineLR"), has_key("params.total_num_steps")));
    rules.push_back(
        when(type_is("OneCycle"), all({has_key("params.cycle_min_lr"), has_key("params.cycle_max_lr")})));
  } else if (section == "fp16") {
    const Json counted = {{"minimum", 1}, {"not", {{"enum", {"0"}}}}};
    rules.push_back(when(has_key("enabled", on),
                         where_present("loss_scale", {{"anyOf", {{{"maximum", 0}}, {{"minimum", 1e-6}}}}})));
    rules.push_back(
        when(all({has_key("enabled", on), where_present("loss_scale", zero)}),
             all({where_present("loss_scale_window", counted), where_present("hysteresis", counted),
                  where_present("min_loss_scale", counted)})));
  } else if (section == "zero_optimization") {
    rules.push_back(when(has_key("offload_optimizer.ratio", {{"type", "number"}, {"exclusiveMaximum", 1}}),
                         has_key("stage", {{"minimum", 3}, {"not", {{"enum", {"0", "1", "2"}}}}})));
  } else if (section == "zero_optimization.offload_optimizer" ||
             section == "zero_optimization.offload_param") {
    rules.push_back(
        when(has_key("device", {{"enum", {"nvme"}}}), has_key("nvme_path", {{"type", "string"}})));
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

}  // namespace zerorun::config
