// Every configuration key and what is known about it: the one owner of key facts. Constant data; any thread.
//
// Keys are named by their path, such as "zero_optimization.stage". A path is offered (a row of facts here),
// renamed (a row that says what to write instead), known in DeepSpeed and not offered (a bare path), or
// unknown.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

enum class KeyKind {
  section,  // an object with keys of its own
  integer,
  number,
  boolean,
  choice,       // one of the texts in `choices`
  number_pair,  // an array of two numbers
  unread        // belongs to a feature that is off: any value is taken and none is looked at
};

struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is excluded
  bool below_max = false;  // max itself is excluded
};

struct KeyFact {
  std::string_view path;
  std::string_view alias = {};  // another name that the key may have instead, as in DeepSpeed
  KeyKind kind = KeyKind::section;
  Range range = {};
  bool nullable = false;  // null is the same as leaving the key out
  std::string_view types =
      {};  // optimizer or scheduler types that take this key; empty: all. Space-separated.
  std::string_view choices = {};   // space-separated
  std::string_view any_case = {};  // those of `choices` that are recognized in any case
  std::string_view not_yet = {};   // texts that DeepSpeed takes here and ZeroRun does not offer
  std::optional<bool> only = {};   // DeepSpeed takes both, ZeroRun offers this one
  std::optional<bool> usual =
      {};  // set: the key changes nothing here, and any other value is told with `reason`
  std::string_view reason = {};  // why the key changes nothing, at all or below its stage
  std::string_view advice = {};  // what to write when the value is wrong or "auto"
};

std::span<const KeyFact> offered_keys();

/// The facts of an offered key, by its path or with its alias as the name, or null.
const KeyFact* find_key(std::string_view path);

/// What to write instead of a key that has another name here; empty if `path` is no such key.
std::string_view renamed_key(std::string_view path);

/// Whether DeepSpeed has this key and ZeroRun does not offer it.
bool is_not_offered(std::string_view path);

/// The names of all keys in a section ("" is the top level), offered ones first.
std::vector<std::string_view> keys_of(std::string_view section);

/// The paths of all keys with this name, offered ones first.
std::vector<std::string> paths_of(std::string_view name);

/// The last part of a path: the key's name in its section.
std::string_view name_of(std::string_view path);

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

}  // namespace zerorun
