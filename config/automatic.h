// What "auto" stands for. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>

#include "config/config.h"
#include "config/value_check.h"

namespace zerorun {

struct AutomaticValue {
  Source source = Source::open;
  SettingValue value;
  ValueCheck argument;  // how an argument fits, if the source is the program
};

/// `fact` takes "auto". The program's arguments come first, then the model, then the default.
AutomaticValue resolve_automatic(const KeyFact& fact, const Arguments& arguments,
                                 std::optional<int64_t> hidden_size);

/// How to give the value that nobody has given.
std::string how_to_give(const KeyFact& fact);

/// Throws UserError for a hidden size that no model has, and for an argument whose key there is not, or never
/// asks for one.
void check_automatic_options(const LoadOptions& options);

}  // namespace zerorun
