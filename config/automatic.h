// What "auto" stands for. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/config_types.h"
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

/// What "auto" stands for, key by key, told in one line for a file.
class AutomaticNotes {
 public:
  /// `value`: what the key has now; monostate where it is left to other keys.
  void add(const KeyFact& fact, const Position& at, const std::string& path, Source source,
           const SettingValue& value);
  void tell(Diagnostics& diagnostics) const;

 private:
  Position at_;
  std::string path_;                                         // of the first
  std::vector<std::pair<std::string, std::string>> groups_;  // who gives the value, and the keys
};

/// How to give the value that nobody has given.
std::string how_to_give(const KeyFact& fact);

/// Throws UserError for a hidden size that no model has, and for an argument whose key there is not, or never
/// asks for one.
void check_automatic_options(const LoadOptions& options);

}  // namespace zerorun
