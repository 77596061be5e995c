// The values of keys that say "auto". Pure functions; any thread.
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
  ValueCheck argument;  // the argument's check, if the source is the program
};

/// The value of an "auto" for `fact`, which must accept "auto": the program's argument if there is one, else
/// the value from the model's hidden size, else the default.
AutomaticValue resolve_automatic(const KeyFact& fact, const Arguments& arguments,
                                 std::optional<int64_t> hidden_size);

/// Collects what each "auto" stands for and reports it in one note per file.
class AutomaticNotes {
 public:
  /// `value`: the value that the key gets; monostate if other keys determine it.
  void add(const KeyFact& fact, const Position& at, const std::string& path, Source source,
           const SettingValue& value);
  void report(Diagnostics& diagnostics) const;

 private:
  Position at_;
  std::string path_;                                         // position and path of the first key added
  std::vector<std::pair<std::string, std::string>> groups_;  // who gives the values -> the keys
};

/// The remedy for an "auto" that nobody has filled in: where to give the value.
std::string how_to_give(const KeyFact& fact);

/// Throws UserError for a hidden size outside 1 to 2^30, and for an argument whose key does not exist or
/// cannot be "auto".
void check_automatic_options(const LoadOptions& options);

}  // namespace zerorun
