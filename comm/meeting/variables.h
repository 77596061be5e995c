// Environment variables, with errors that name the variable. They are read through a function, so that tests
// can read from a table instead. Plain values; any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace zerorun {

class Variables {
 public:
  using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

  explicit Variables(Lookup lookup) : lookup_(std::move(lookup)) {}
  /// Returns the environment variables of this process.
  static Variables of_process();

  /// Returns the variable's value. An empty value counts as not set.
  std::optional<std::string> find(const std::string& name) const;
  bool has(const std::string& name) const { return find(name).has_value(); }

 private:
  Lookup lookup_;
};

/// Returns the number in `text`, the value of variable `name`. Throws UserError if it is not a whole number
/// from `lowest` to `highest`.
int whole_number(const std::string& name, const std::string& text, int lowest, int highest);

/// The most ranks that a job may have.
inline constexpr int kMaxRanks = 1 << 20;

}  // namespace zerorun
