// The settings of one configuration by their paths in the key table: from the file, from "auto", and
// defaults. Owned by one load; a plain value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/diagnostics.h"
#include "config/key_table.h"

namespace zerorun {

/// monostate: a section, a list of texts or an object; their content is not kept.
using SettingValue = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<double>>;

/// As JSON; numbers in their shortest form. A monostate is null.
std::string to_json(const SettingValue& value);

enum class Source {
  file,
  program,   // the file says "auto", the program's arguments give the value
  model,     // the file says "auto", the model's hidden size gives the value
  fallback,  // the file says "auto", which stands for the table's default
  derived,   // a default that follows from other settings
  open,      // the file says "auto", and nobody has given the value
  refused    // the value in the file does not fit, which has been reported
};

struct Setting {
  const KeyFact* fact = nullptr;
  SettingValue value;
  Source source = Source::file;
  std::optional<Position> at;  // of the value, if the file has the key
  std::string written;         // the path that the file uses
};

class Settings {
 public:
  Settings() = default;
  /// `root`: where the top level begins.
  explicit Settings(const Position& root) : root_(root) {}

  void put(Setting setting);
  /// Sets a default that depends on other settings, unless the key has a value or is undecided.
  void derive(std::string_view path, SettingValue value);

  /// The setting if the file has the key and it is not null, or if it was derived; else null. Its value is
  /// monostate for a section, for an undecided key, and for an "auto" that equals leaving the key out.
  const Setting* find(std::string_view path) const;
  /// Whether the file gives the key a value, directly or through "auto".
  bool given(std::string_view path) const;
  /// Whether the key's value is the table's default, given or not.
  bool at_default(std::string_view path) const;
  /// Whether rules cannot use the key's value: it is "auto" and nobody has given it, or it was refused.
  bool undecided(std::string_view path) const;

  /// The value, or else the table's default; nothing if there is neither. Integer settings are int64_t,
  /// numbers double.
  template <typename T>
  std::optional<T> get(std::string_view path) const {
    const SettingValue value = value_of(path);
    const T* held = std::get_if<T>(&value);
    return held ? std::optional<T>(*held) : std::nullopt;
  }

  /// The position for a message about `path`: its value, or else the innermost section around it that the
  /// file has.
  Position place(std::string_view path) const;
  /// The path as the file spells it.
  std::string written(std::string_view path) const;

  const std::map<std::string, Setting, std::less<>>& all() const { return settings_; }

 private:
  SettingValue value_of(std::string_view path) const;

  Position root_;
  std::map<std::string, Setting, std::less<>> settings_;
};

/// The default of a key as a value; monostate if it has none.
SettingValue fallback_of(const KeyFact& fact);

}  // namespace zerorun
