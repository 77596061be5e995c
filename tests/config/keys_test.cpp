// The key table: nothing that DeepSpeed knows is called unknown, nothing that is offered goes unread.
#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "config/key_table.h"
#include "config/suggestion.h"
#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::test;

namespace {

/// A configuration in which `path` has `value`, with the types that its section needs beside it.
std::string config_with(const std::string& path, const std::string& value, const std::string& type) {
  std::string text = value;
  std::string rest = path;
  for (std::size_t dot; !rest.empty(); rest.resize(dot == std::string::npos ? 0 : dot)) {
    dot = rest.rfind('.');
    const std::string name = dot == std::string::npos ? rest : rest.substr(dot + 1);
    const bool typed = name == "params" && rest != path;
    text = "{" + std::string(typed ? "\"type\": \"" + type + "\", " : "") + "\"" + name + "\": " + text + "}";
  }
  return text;
}

std::string type_for(const KeyFact& fact) {
  if (!fact.types.empty()) return split(std::string(fact.types), ' ').front();
  return fact.path.substr(0, 9) == "scheduler" ? "WarmupLR" : "Adam";
}

/// The path of a key, and that of its alias.
std::vector<std::string> names_of(const KeyFact& fact) {
  std::vector<std::string> paths = {std::string(fact.path)};
  const std::string section = paths[0].substr(0, paths[0].rfind('.') + 1);
  if (!fact.alias.empty()) paths.push_back(section + std::string(fact.alias));
  return paths;
}

}  // namespace

TEST_CASE("each key of DeepSpeed is offered, renamed, or told to be DeepSpeed's") {
  int offered = 0;
  int not_offered = 0;
  int renamed = 0;
  for (const std::string& path : data_lines("deepspeed_keys.txt")) {
    INFO(path);
    const std::string section = path.substr(0, path.find('.'));
    if (!renamed_key(section).empty() || !renamed_key(path).empty()) {
      ++renamed;
      CHECK(find_key(path) == nullptr);
    } else if (find_key(path)) {
      ++offered;
      CHECK(!is_not_offered(path));
    } else {
      ++not_offered;
      CHECK(is_not_offered(path));
    }
  }
  CHECK(offered == 69);
  CHECK(not_offered == 359);
  CHECK(renamed == 8);
}

TEST_CASE("a key that only DeepSpeed has is refused by its own name, or by that of its section") {
  for (const std::string& path : data_lines("deepspeed_keys.txt")) {
    if (!is_not_offered(path) || path.find('*') != std::string::npos) continue;
    INFO(path);
    const auto found = refusals(config_with(path, "null", "Adam"));
    bool told = false;
    for (const Refusal& refusal : found) {
      const bool same = refusal.path == path || path.rfind(refusal.path + ".", 0) == 0;
      told = told || (same && refusal.found == "one that only DeepSpeed has so far");
      CHECK(refusal.expected != "a known key");
    }
    CHECK(told);
  }
}

TEST_CASE("each offered key is read, by all its names: a value of a wrong kind is refused at its place") {
  for (const KeyFact& fact : offered_keys()) {
    if (fact.kind == KeyKind::unread) continue;
    for (const std::string& path : names_of(fact)) {
      INFO(path);
      const auto found = refusals(config_with(path, "[[]]", type_for(fact)));
      bool told = false;
      for (const Refusal& refusal : found)
        told = told || (refusal.path == path && refusal.found == "an array");
      CHECK(told);
    }
  }
}

TEST_CASE("\"auto\" is refused with what to write instead, for every key that could have it") {
  for (const KeyFact& fact : offered_keys()) {
    if (fact.kind == KeyKind::unread) continue;
    for (const std::string& path : names_of(fact)) {
      INFO(path);
      bool told = false;
      for (const Refusal& refusal : refusals(config_with(path, "\"auto\"", type_for(fact)))) {
        const bool remedied = refusal.remedy.find("training frameworks: ") != std::string::npos;
        told = told || (refusal.path == path && remedied);
      }
      CHECK(told);
    }
  }
}

TEST_CASE("no key has two rows") {
  std::set<std::string> paths;
  for (const KeyFact& fact : offered_keys()) {
    for (const std::string& path : names_of(fact)) CHECK(paths.insert(path).second);
  }
}

TEST_CASE("an unknown key gets the key that was meant, or the section where it belongs") {
  struct Row {
    const char* settings;
    const char* place;
    const char* remedy;
  };
  const Row rows[] = {
      {R"("gradient_cliping": 1)", "2:1 gradient_cliping", "did you mean \"gradient_clipping\"?"},
      {R"("Zero_Optimisation": {})", "2:1 Zero_Optimisation", "did you mean \"zero_optimization\"?"},
      {R"("zero_optimization": {"stgae": 1})", "2:23 zero_optimization.stgae", "did you mean \"stage\"?"},
      {R"("zero_optimization": {"ofload_param": 1})", "2:23 zero_optimization.ofload_param",
       "did you mean \"offload_param\"?"},
      {R"("zero_optimization": {"stage3_max_life_parameters": 1})",
       "2:23 zero_optimization.stage3_max_life_parameters", "did you mean \"stage3_max_live_parameters\"?"},
      {R"("zero_optimization": {"max_reuse_distanse": 1})", "2:23 zero_optimization.max_reuse_distanse",
       "did you mean \"max_reuse_distance\"?"},
      {R"("sub_group_size": 1)", "2:1 sub_group_size",
       "the key belongs elsewhere: zero_optimization.sub_group_size"},
      {R"("max_live_parameters": 1)", "2:1 max_live_parameters",
       "the key belongs elsewhere: zero_optimization.max_live_parameters"},
      {R"("stage": 2)", "2:1 stage", "the key belongs elsewhere: zero_optimization.stage"},
      {R"("offload_optimizer": {})", "2:1 offload_optimizer",
       "the key belongs elsewhere: zero_optimization.offload_optimizer"},
      {R"("zero_optimization": {"fp16": {}})", "2:23 zero_optimization.fp16",
       "the key belongs elsewhere: fp16"},
      {R"("max_grad_norm": 1)", "2:1 max_grad_norm", "write gradient_clipping"},
      {R"("bfloat16": {"enabled": false})", "2:1 bfloat16", "write bf16"},
      {R"("enabled": true)", "2:1 enabled", "remove it (remarks can be written as // comments)"},
      {R"("my_notes": "x")", "2:1 my_notes", "remove it (remarks can be written as // comments)"},
      {R"("": 1)", "2:1 top level", "remove it (remarks can be written as // comments)"},
      {R"("zero_optimization.stage": 2)", "2:1 zero_optimization.stage",
       "write it inside the object of its section: dots do not nest"},
      {R"("aio.block_size": 2)", "2:1 aio.block_size",
       "write it inside the object of its section: dots do not nest"},
  };
  for (const Row& row : rows) {
    INFO(row.settings);
    const auto found = refusals(with(row.settings));
    REQUIRE(found.size() == 1);
    CHECK(found[0].place() == row.place);
    CHECK(found[0].remedy == row.remedy);
  }
}

TEST_CASE("the edit distance counts letters and swapped neighbours, whatever their case") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("stage", "Stage") == 0);
  CHECK(edit_distance("stage", "") == 5);
  CHECK(edit_distance("", "ab") == 2);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("stgae", "stage") == 1);
  CHECK(edit_distance("lr", "lrr") == 1);
}
