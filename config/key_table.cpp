#include "config/key_table.h"

#include <deque>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "config/keys/tables.h"

namespace zerorun::config {
namespace {

class Table {
 public:
  Table() {
    for (const auto& rows :
         {keys::run, keys::optimizer, keys::scheduler, keys::zero, keys::offload, keys::precision,
          keys::checkpoint, keys::monitoring, keys::data, keys::parallel, keys::activations}) {
      const KeyFact* section = nullptr;
      for (const KeyFact& row : rows) {
        const KeyFact* added = add(row, section);
        if (row.type == KeyType::section && row.status != KeyStatus::old_name) section = added;
      }
    }
    for (KeyFact& fact : rows_) adopt_present(fact);
  }

  std::vector<const KeyFact*> facts;
  std::unordered_map<std::string, const KeyFact*> by_path;  // also keyed by the path with the other name
  std::unordered_map<std::string, std::vector<const KeyFact*>> by_section;
  std::unordered_map<std::string_view, std::vector<std::string>> paths;

 private:
  /// `last` is the preceding section row of the same file.
  const KeyFact* add(const KeyFact& row, const KeyFact* last) {
    KeyFact& fact = rows_.emplace_back(row);
    if (fact.path.starts_with('.'))
      fact.path = paths_.emplace_back(std::string(last->path) + std::string(fact.path));
    const auto section = by_path.find(std::string(section_of(fact.path)));
    if (section != by_path.end()) inherit(*section->second, fact);
    facts.push_back(&fact);
    by_section[std::string(section_of(fact.path))].push_back(&fact);
    add_name(fact, name_of(fact.path));
    if (!fact.other_name.empty()) add_name(fact, fact.other_name);
    return &fact;
  }

  static void inherit(const KeyFact& section, KeyFact& fact) {
    const bool lost = section.status == KeyStatus::no_effect || section.status == KeyStatus::not_supported;
    if (fact.status == KeyStatus::supported && lost) fact.status = section.status;
    if (fact.status == section.status && fact.reason.empty()) fact.reason = section.reason;
    fact.removed = fact.removed || section.removed;
    const bool present = fact.status != KeyStatus::old_name && fact.status != KeyStatus::replaced;
    const bool may_be_auto = section.auto_inside && !fact.never_auto && fact.type != KeyType::section;
    if (present && may_be_auto && fact.automatic == Automatic::nobody) fact.automatic = Automatic::fallback;
  }

  /// Copies the properties of the row of `fact.target` to an old name's row. Skips rows of old_form_of(),
  /// whose values have another form.
  void adopt_present(KeyFact& fact) {
    if (fact.status != KeyStatus::old_name || !fact.meaning.empty()) return;
    const KeyFact old = fact;
    fact = *by_path.at(std::string(old.target));
    fact.path = old.path;
    fact.target = old.target;
    fact.status = KeyStatus::old_name;
    fact.reason = fact.other_name = {};
  }

  void add_name(const KeyFact& fact, std::string_view name) {
    const std::string path = join_path(section_of(fact.path), name);
    ZR_CHECK(by_path.emplace(path, &fact).second, "two rows for " + path);
    paths[name].push_back(path);
  }

  std::deque<KeyFact> rows_;
  std::deque<std::string> paths_;  // full paths of rows whose path began with a dot
};

const Table& table() {
  static const Table table;
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

const KeyFact& row_of(std::string_view path) {
  const KeyFact* fact = find_key(path);
  ZR_CHECK(fact, "no row for " + std::string(path));
  return *fact;
}

const std::vector<const KeyFact*>& facts_in(std::string_view section) {
  static const std::vector<const KeyFact*> none;
  const auto found = table().by_section.find(std::string(section));
  return found == table().by_section.end() ? none : found->second;
}

std::vector<std::string_view> keys_of(std::string_view section) {
  std::vector<std::string_view> names;
  for (const KeyFact* fact : facts_in(section)) {
    names.push_back(name_of(fact->path));
    if (!fact->other_name.empty()) names.push_back(fact->other_name);
  }
  return names;
}

std::vector<std::string> paths_of(std::string_view name) {
  const auto found = table().paths.find(name);
  return found == table().paths.end() ? std::vector<std::string>() : found->second;
}

std::vector<std::string> better_names(const KeyFact& fact, std::string_view name) {
  if (fact.status != KeyStatus::old_name) {
    return name == fact.other_name ? std::vector{std::string(name_of(fact.path))}
                                   : std::vector<std::string>();
  }
  const std::string inside = join_path(section_of(fact.path), "");
  if (!fact.target.starts_with(inside)) return {};
  std::vector<std::string> names = {std::string(fact.target.substr(inside.size()))};
  const std::string_view other_name = row_of(fact.target).other_name;
  if (!other_name.empty()) names.push_back(join_path(section_of(names[0]), other_name));
  for (const KeyFact* other : facts_in(section_of(fact.path))) {
    if (other == &fact) break;
    const bool same = other->status == KeyStatus::old_name && other->target == fact.target;
    if (same) names.emplace_back(name_of(other->path));
  }
  return names;
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

}  // namespace zerorun::config
