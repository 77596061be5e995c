#include "config/key_table.h"

#include <unordered_map>

#include "base/error.h"
#include "config/keys/tables.h"

namespace zerorun {
namespace {

struct Table {
  std::vector<const KeyFact*> facts;
  std::unordered_map<std::string, const KeyFact*> by_path;  // also by the path with the other name
  std::unordered_map<std::string, std::vector<std::string_view>> names;
  std::unordered_map<std::string_view, std::vector<std::string>> paths;

  void add(const KeyFact& fact) {
    facts.push_back(&fact);
    add_name(fact, name_of(fact.path));
    if (!fact.other_name.empty()) add_name(fact, fact.other_name);
  }

  void add_name(const KeyFact& fact, std::string_view name) {
    const std::string path = join_path(section_of(fact.path), name);
    ZR_CHECK(by_path.emplace(path, &fact).second, "two rows for " + path);
    names[std::string(section_of(fact.path))].push_back(name);
    paths[name].push_back(path);
  }
};

const Table& table() {
  static const Table table = [] {
    Table result;
    for (const auto& rows :
         {run_keys(), optimizer_keys(), scheduler_keys(), zero_keys(), offload_keys(), precision_keys(),
          checkpoint_keys(), monitoring_keys(), data_keys(), parallel_keys()}) {
      for (const KeyFact& fact : rows) result.add(fact);
    }
    return result;
  }();
  return table;
}

}  // namespace

const std::vector<const KeyFact*>& key_facts() {
  return table().facts;
}

const KeyFact* find_key(std::string_view path) {
  const auto found = table().by_path.find(std::string(path));
  return found == table().by_path.end() ? nullptr : found->second;
}

std::vector<std::string_view> keys_of(std::string_view section) {
  const auto found = table().names.find(std::string(section));
  return found == table().names.end() ? std::vector<std::string_view>() : found->second;
}

std::vector<std::string> paths_of(std::string_view name) {
  const auto found = table().paths.find(name);
  return found == table().paths.end() ? std::vector<std::string>() : found->second;
}

bool is_remark(std::string_view name) {
  return name == "comment" || name == "comments" || name == "$schema" || name.starts_with('_') ||
         name.starts_with("//") || name.starts_with('#');
}

std::string_view name_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::string_view section_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string join_path(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name) : std::string(section) + "." + std::string(name);
}

bool has_word(std::string_view list, std::string_view word) {
  bool found = false;
  for_each_word(list, [&](std::string_view candidate) { found = found || candidate == word; });
  return found;
}

std::string in_words(std::string_view list) {
  std::string text;
  for_each_word(list,
                [&](std::string_view word) { text += (text.empty() ? "" : " or ") + std::string(word); });
  return text;
}

}  // namespace zerorun
