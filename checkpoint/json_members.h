// Reads the members of a JSON object, and refuses those that no one has asked for. Used by manifest.cpp and
// manifest_mesh.cpp.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"

namespace zerorun::checkpoint {

/// "data_position", or "ranges.sum_group" for a member of a range.
using Skippable = std::set<std::string>;

/// Reads the members of a JSON object. end() throws if the object has members that were not read, except
/// those that the manifest declares skippable.
class Members {
 public:
  /// `kind`: what the names of skippable members of this object start with, such as "ranges.".
  Members(const nlohmann::json& value, std::string where, const Skippable& skippable, std::string kind)
      : value_(&value), where_(std::move(where)), kind_(std::move(kind)), skippable_(&skippable) {
    if (!value.is_object()) fail("expected an object");
  }
  const nlohmann::json& at(const std::string& key) {
    taken_.insert(key);
    if (!value_->contains(key)) fail("\"" + key + "\" is missing");
    return (*value_)[key];
  }
  /// Null if there is no such member.
  const nlohmann::json* find(const std::string& key) { return value_->contains(key) ? &at(key) : nullptr; }
  template <typename T>
  T get(const std::string& key) {
    const nlohmann::json& value = at(key);
    try {
      return value.get<T>();
    } catch (const nlohmann::json::exception& error) {
      fail("\"" + key + "\": " + error.what());
    }
  }
  int64_t count(const std::string& key) {
    constexpr int64_t kMost = int64_t{1} << 60;
    const nlohmann::json& value = at(key);
    if (value.is_number_integer() && value >= 0 && value <= kMost) return value.get<int64_t>();
    fail("\"" + key + "\" is " + value.dump() + ", expected a count");
  }
  void end() const {
    for (const auto& [key, value] : value_->items()) {
      if (taken_.contains(key) || skippable_->contains(kind_ + key)) continue;
      fail("\"" + key + "\" is a key that this version of ZeroRun does not know: read it with the version " +
           "that wrote it");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw UserError(where_ + ": " + what); }

  const nlohmann::json* value_;
  std::string where_;
  std::string kind_;
  const Skippable* skippable_;
  std::set<std::string> taken_;
};

}  // namespace zerorun::checkpoint
