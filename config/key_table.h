// All rows of config/keys/, with lookup functions. The table is built at the first call and never changes
// afterwards. Any thread.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "config/key_fact.h"

namespace zerorun::config {

/// All rows. A section's row comes before the rows of its keys.
const std::vector<const KeyFact*>& key_facts();

/// The row of a key, by its path or by the path with its other name; null if there is none.
const KeyFact* find_key(std::string_view path);

/// Like find_key(), for a path that must have a row.
const KeyFact& row_of(std::string_view path);

/// The rows of the keys directly in a section; "" is the top level.
const std::vector<const KeyFact*>& facts_in(std::string_view section);

/// The names of all keys directly in a section, including other names; "" is the top level.
std::vector<std::string_view> keys_of(std::string_view section);

/// The paths of all keys named `name`, in any section.
std::vector<std::string> paths_of(std::string_view name);

/// `name` is one of the names of a key. Returns the key's names that take precedence over `name`. A file may
/// not use `name` together with a returned name. Names are relative to the key's section. If an old
/// name's key has moved to a subsection, its present name is a path: "offload_optimizer.pin_memory".
std::vector<std::string> better_names(const KeyFact& fact, std::string_view name);

/// Whether a key is a remark, which is skipped: "comment", "comments", "$schema", or a name that begins with
/// "_", "//" or "#".
bool is_remark(std::string_view name);

/// The last part of a path: the key's name in its section.
std::string_view name_of(std::string_view path);

/// The path without its last part; empty for a key of the top level.
std::string_view section_of(std::string_view path);

/// `section` and `name` as one path.
std::string join_path(std::string_view section, std::string_view name);

/// Calls `each` with every word of a space-separated list.
template <typename Each>
void for_each_word(std::string_view list, Each each) {
  while (!list.empty()) {
    const auto end = std::min(list.find(' '), list.size());
    each(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

bool has_word(std::string_view list, std::string_view word);

/// Joins the words of a space-separated list with "or".
std::string in_words(std::string_view list);

}  // namespace zerorun::config
