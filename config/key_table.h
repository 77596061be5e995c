// The rows of config/keys/ together, and how to find one. Built at the first call; constant from then on, so
// any thread may use it.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "config/key_fact.h"

namespace zerorun {

/// All rows; a section comes before its keys.
const std::vector<const KeyFact*>& key_facts();

/// The row of a key by its path or its other name, or null. If the keys of a section are the user's own,
/// their row has "*" in its path.
const KeyFact* find_key(std::string_view path);

/// The same for a path that must have a row.
const KeyFact& row_of(std::string_view path);

/// The rows of a section ("" is the top level) without those of its subsections' keys.
const std::vector<const KeyFact*>& facts_in(std::string_view section);

/// The names of all keys in a section ("" is the top level), other names included.
std::vector<std::string_view> keys_of(std::string_view section);

/// The paths of all keys with this name.
std::vector<std::string> paths_of(std::string_view name);

/// The names that go before `name`, one of the names of this key, seen from its section: a file may use one
/// of them only. An old name may stand for a key in a subsection of its own section.
std::vector<std::string> better_names(const KeyFact& fact, std::string_view name);

/// Whether a key is a remark: "//", "#", "comment", "comments", "$schema", or a name that begins with "_",
/// "//", "#".
bool is_remark(std::string_view name);

/// The last part of a path: the key's name in its section.
std::string_view name_of(std::string_view path);

/// The path without its last part; empty for a key of the top level.
std::string_view section_of(std::string_view path);

/// `section` and `name` as one path.
std::string join_path(std::string_view section, std::string_view name);

/// Calls `each` with the words of a space-separated list.
template <typename Each>
void for_each_word(std::string_view list, Each each) {
  while (!list.empty()) {
    const auto end = std::min(list.find(' '), list.size());
    each(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

bool has_word(std::string_view list, std::string_view word);

/// The words of a space-separated list with "or" between them.
std::string in_words(std::string_view list);

}  // namespace zerorun
