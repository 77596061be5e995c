// Suggests a remedy for an unknown key: the key that was probably intended, or the section to which it
// belongs. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/document.h"
#include "config/key_fact.h"

namespace zerorun::config {

/// The edit distance of `a` and `b`, ignoring case: the number of letters to insert, delete, replace or
/// transpose.
int edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate with the smallest edit distance to `word`, or empty if none is near enough. Among
/// equally near candidates it prefers the longest common prefix.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

struct Remedy {
  std::string text;
  const KeyFact* meant = nullptr;  // the key of this section that was probably intended, if known
};

/// Returns the remedy for the unknown key `name` of `section`, which is a path in the key table ("" is the
/// top level). `value` is the key's value in the file.
Remedy unknown_key(std::string_view section, std::string_view name, const Value& value = {});

}  // namespace zerorun::config
