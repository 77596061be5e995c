// Resolves keys whose value in the file is "auto". Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/config_types.h"
#include "config/value_check.h"

namespace zerorun::config {

struct AutomaticValue {
  Source source = Source::open;
  SettingValue value;
  ValueCheck argument;  // the check of the program's argument, if `source` is Source::program
};

/// Returns the value for an "auto" of `fact`, a key that accepts "auto". It is the program's argument if
/// there is one. Otherwise `fact.automatic` says whether it is computed from the model's hidden size, or is
/// the default. If there is no value yet, the source is Source::open.
AutomaticValue resolve_automatic(const KeyFact& fact, const Arguments& arguments,
                                 std::optional<int64_t> hidden_size);

/// Collects the value of each "auto" and reports all of them in one note per file.
class AutomaticNotes {
 public:
  /// `value` is the value that the key gets, or monostate if there is none yet.
  void add(const KeyFact& fact, const Position& at, const std::string& path, Source source,
           const SettingValue& value);
  void report(Diagnostics& diagnostics) const;

 private:
  Position at_;
  std::string path_;  // position and path of the first key that was added
  std::vector<std::pair<std::string, std::string>> groups_;  // origin of the values -> keys with their values
};

/// Returns the remedy for an "auto" without a value: where the program or the file can set the value.
std::string how_to_give(const KeyFact& fact);

/// Throws UserError if the hidden size is not in 1 to 2^30, or if an argument names a key that does not exist
/// or cannot be "auto".
void check_automatic_options(const LoadOptions& options);

}  // namespace zerorun::config
