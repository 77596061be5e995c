// What to say about a key that nobody knows: the nearest known key, or the section where it belongs. Pure
// functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

/// Letters to insert, delete, change or swap with a neighbour to turn `a` into `b`, whatever their case.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word` if it is near enough to be what was meant; else empty.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

struct Remedy {
  std::string text;
  bool is_typo = false;  // a key of this section is near enough to be what was meant
};

/// The remedy for the unknown key `name` of `section`, which is a path of the key table ("" is the top
/// level).
Remedy unknown_key(std::string_view section, std::string_view name);

}  // namespace zerorun
