// Keys that are not known, but have no effect wherever they occur: settings of other programs, and of
// DeepSpeed versions in which they did nothing. They get a warning, where other unknown keys are errors.
// Constant data; any thread.
//
// A key belongs into this table only if training and memory are the same without it.
#pragma once

#include <span>
#include <string_view>

#include "config/document.h"

namespace zerorun::config {

struct Leftover {
  std::string_view section;  // path in the key table; empty: the top level
  std::string_view names;    // separated by spaces
  std::string_view reason;   // why it has no effect
  bool only_false = false;   // with any other value the key is no leftover
};

std::span<const Leftover> leftovers();

/// The leftover that the key `name` of `section` is; null if it is none. `section` may be an old name.
const Leftover* find_leftover(std::string_view section, std::string_view name, const Value& value);

}  // namespace zerorun::config
