// Compares two configurations by what a run would do. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "config/settings.h"

namespace zerorun {

struct Difference {
  std::string path;
  std::string first, second;                // values as JSON; empty: the key does not apply there
  std::string first_origin, second_origin;  // where they come from
};

/// Differences in meaning, in the order of the key table. Spelling, order, remarks, defaults that are written
/// out and keys that change nothing do not count.
std::vector<Difference> compare_settings(const Settings& first, const Settings& second);

}  // namespace zerorun
