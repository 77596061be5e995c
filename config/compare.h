// Compares two configurations by their effect on a run. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "config/settings.h"

namespace zerorun::config {

struct Difference {
  std::string path;
  std::string first, second;  // values as JSON; empty: the key does not apply in that configuration
  std::string first_origin, second_origin;  // where the values come from, such as "line 7" or "default"
};

/// Returns the settings whose values differ, in the order of the key table. Ignores everything that does not
/// change a run: old names, the order of keys, comments, defaults written out, and keys without an effect.
std::vector<Difference> compare_settings(const Settings& first, const Settings& second);

}  // namespace zerorun::config
