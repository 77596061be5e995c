// Typed access to a file's pickled values, with errors that name the file and the key. Also converts pickled
// values to JSON. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/pickle.h"

namespace zerorun::convert {

/// A value and, for messages, its place in the file: "FILE: optimizer_state_dict.zero_stage".
struct PickledField {
  std::string place;
  PickleValue value;

  /// Return an entry of a dict. If the entry is missing or None, need() throws UserError and find() returns
  /// nullopt.
  PickledField need(std::string_view key) const;
  std::optional<PickledField> find(std::string_view key) const;
  /// Returns an item of a list or tuple. Throws UserError if there is no item `index`.
  PickledField item(size_t index) const;

  /// These throw UserError for a value of another kind. integer() also accepts booleans, floats without a
  /// fraction, and objects constructed from one integer (enumerations).
  int64_t integer() const;
  double real() const;
  const std::string& text() const;
  std::vector<int64_t> integers() const;
  std::vector<std::string> texts() const;
  /// Returns the entries of a dict, in order. Throws UserError for a key that is not a text.
  std::vector<std::pair<std::string, PickledField>> entries() const;
  std::vector<PickledField> items() const;
};

/// Converts the value to JSON. Objects, including tensors, become {"class", "arguments", "state"}; bytes
/// become hexadecimal text; numbers that are not finite become text. Sets `has_storages` to whether the value
/// contains the storage of a tensor, whose elements are not in the JSON. Throws UserError if the value
/// contains itself, or exceeds a million values or 64 MiB of text.
nlohmann::ordered_json to_json(const PickledField& field, bool* has_storages = nullptr);

}  // namespace zerorun::convert
