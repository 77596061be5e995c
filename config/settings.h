// The settings of one configuration, by their path in the key table. They come from the file, from resolved
// "auto" values, and from derived defaults. A plain value, owned by one load.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/diagnostics.h"
#include "config/key_table.h"

namespace zerorun::config {

/// monostate stands for sections and objects, whose content is not kept.
using SettingValue = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<double>,
                                  std::vector<std::string>>;

/// Returns the value as JSON, with numbers in their shortest form. A monostate is null.
std::string to_json(const SettingValue& value);

enum class Source {
  file,
  program,   // "auto" in the file; the value is from the program's arguments
  model,     // "auto" in the file; the value is from the model's hidden size
  fallback,  // "auto" in the file; the value is the table's default
  derived,   // absent or "auto" in the file; the value follows from other settings
  open,      // "auto" in the file; there is no value yet
  refused    // the value in the file is wrong, which has been reported
};

struct Setting {
  const KeyFact* fact = nullptr;
  SettingValue value;
  Source source = Source::file;
  std::optional<Position> at;  // position of the value, if the file has the key
  std::string written;         // path as the file spells it
};

class Settings {
 public:
  Settings() = default;
  /// `root` is the position of the file's top level.
  explicit Settings(const Position& root) : root_(root) {}

  void put(Setting setting);
  /// Sets a default that depends on other settings. Does nothing if the key has a value or is undecided.
  void derive(std::string_view path, SettingValue value);

  /// Returns the setting if the file has the key with a value other than null, or if derive() has set it;
  /// else nullptr. The value is monostate for a section, an undecided key, and an "auto" whose key has no
  /// default.
  const Setting* find(std::string_view path) const;
  /// Whether the file sets the key, to a value or to an "auto" that the program or the model has resolved.
  bool given(std::string_view path) const;
  /// Whether the key's value equals the table's default, set explicitly or not.
  bool at_default(std::string_view path) const;
  /// Whether rules cannot use the key's value: it is an "auto" without a value, or was refused.
  bool undecided(std::string_view path) const;

  /// The value, or the table's default; nothing if there is neither. Integers are int64_t, and other numbers
  /// double.
  template <typename T>
  std::optional<T> get(std::string_view path) const {
    const SettingValue value = value_of(path);
    const T* held = std::get_if<T>(&value);
    return held ? std::optional<T>(*held) : std::nullopt;
  }

  /// The position for a message about `path`: the position of its value or, if the file does not have the
  /// key, of the innermost section around the key that the file has.
  Position place(std::string_view path) const;
  /// The path as the file spells it.
  std::string written(std::string_view path) const;

  const std::map<std::string, Setting, std::less<>>& all() const { return settings_; }

 private:
  SettingValue value_of(std::string_view path) const;

  Position root_;
  std::map<std::string, Setting, std::less<>> settings_;
};

/// The default of a key as a value, or monostate if it has none.
SettingValue fallback_of(const KeyFact& fact);

}  // namespace zerorun::config
