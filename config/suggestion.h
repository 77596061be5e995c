// The remedy for an unknown key: the key that is probably meant, or the section where it belongs. Pure
// functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/document.h"
#include "config/key_fact.h"

namespace zerorun {

/// The number of letters to insert, delete, change or swap with a neighbour to turn `a` into `b`, ignoring
/// case.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word`, if it is near enough to be what was meant, else empty. Of several equally
/// near ones, the one that shares the longest beginning.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

struct Remedy {
  std::string text;
  const KeyFact* meant = nullptr;  // the key of this section that is probably meant, if there is one
};

/// The remedy for the unknown key `name` of `section`, which is a path of the key table ("" is the top
/// level). `value`: the key's value in the file.
Remedy unknown_key(std::string_view section, std::string_view name, const Value& value = {});

}  // namespace zerorun
