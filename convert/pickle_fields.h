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

/// Where a value stands, for messages: "FILE: optimizer_state_dict.zero_stage".
struct PickledField {
  std::string place;
  PickleValue value;

  /// A dict's entry. need() throws UserError if there is none, find() returns nothing for none and for None.
  PickledField need(std::string_view key) const;
  std::optional<PickledField> find(std::string_view key) const;
  /// The item of a list or tuple. Throws UserError if it has fewer.
  PickledField item(size_t index) const;

  /// Throw UserError for a value of another kind. An integer may be a boolean, an integral number, or an
  /// object made of one (an enumeration).
  int64_t integer() const;
  double real() const;
  const std::string& text() const;
  std::vector<int64_t> integers() const;
  std::vector<std::string> texts() const;
  /// Entries of a dict whose keys are texts, in order; throws UserError for another key.
  std::vector<std::pair<std::string, PickledField>> entries() const;
  std::vector<PickledField> items() const;
};

/// The value as JSON: objects as {"class", "arguments", "state"}, tensors likewise, bytes in hexadecimal,
/// numbers that are not finite as text. `has_storages`: set if a tensor's storage is in it, whose values JSON
/// does not have. Throws UserError if the value contains itself or becomes more than a million values or 64
/// MiB of text.
nlohmann::ordered_json to_json(const PickledField& field, bool* has_storages = nullptr);

}  // namespace zerorun
