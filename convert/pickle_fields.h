// Typed access to a file's pickled values, with errors that name the file and the key; and pickled values as
// JSON. Pure; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/pickle.h"

namespace zerorun {

/// A value, and its place in the file for messages: "FILE: optimizer_state_dict.zero_stage".
struct PickledField {
  std::string place;
  PickleValue value;

  /// An entry of a dict. If the entry is missing or None, need() throws UserError and find() returns nullopt.
  PickledField need(std::string_view key) const;
  std::optional<PickledField> find(std::string_view key) const;
  /// An item of a list or tuple. Throws UserError if there is no item `index`.
  PickledField item(size_t index) const;

  /// Throw UserError for a value of another kind. integer() also accepts booleans, integral floats, and
  /// objects made of one integer (enumerations).
  int64_t integer() const;
  double real() const;
  const std::string& text() const;
  std::vector<int64_t> integers() const;
  std::vector<std::string> texts() const;
  /// The entries of a dict, in order. Throws UserError for a key that is not a text.
  std::vector<std::pair<std::string, PickledField>> entries() const;
  std::vector<PickledField> items() const;
};

/// The value as JSON: objects as {"class", "arguments", "state"}, tensors likewise, bytes in hexadecimal,
/// numbers that are not finite as text. `has_storages`: set to whether the value contains a tensor's storage,
/// whose elements the JSON lacks. Throws UserError if the value contains itself or becomes more than a
/// million values or 64 MiB of text.
nlohmann::ordered_json to_json(const PickledField& field, bool* has_storages = nullptr);

}  // namespace zerorun
