#include "checkpoint/json_text.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"

namespace zerorun::checkpoint {
namespace {

using nlohmann::json;

// Reads JSON without keeping it, except the place of the value that is being read.
class Checker : public nlohmann::json_sax<json> {
 public:
  explicit Checker(const std::string& what) : what_(what) {}

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(json::number_integer_t /*value*/) override { return true; }
  bool number_unsigned(json::number_unsigned_t /*value*/) override { return true; }
  bool number_float(json::number_float_t /*value*/, const std::string& text) override {
    if (text.find_first_of(".eE") != std::string::npos) return true;
    fail(place() + " is an integer of more than 64 bits, " + text.substr(0, kShown) +
         ", which would be rounded: write it as a text");
  }
  bool string(std::string& /*value*/) override { return true; }
  bool binary(json::binary_t& /*value*/) override { return true; }
  bool start_object(size_t /*elements*/) override {
    open(/*is_object=*/true);
    return true;
  }
  bool key(std::string& key) override {
    Level& level = levels_.back();
    if (!level.keys.insert(key).second)
      fail(place_of(levels_.size() - 1) + " has the key \"" + key.substr(0, kShown) +
           "\" twice: leave one out");
    level.key = key;
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t /*elements*/) override {
    open(/*is_object=*/false);
    return true;
  }
  bool end_array() override { return close(); }
  bool parse_error(size_t /*position*/, const std::string& /*last_token*/,
                   const json::exception& error) override {
    fail(what_ + " is not JSON: " + error.what());
  }

 private:
  static constexpr size_t kShown = 60;

  struct Level {
    bool is_object;
    std::set<std::string> keys;
    std::string key;
  };

  [[noreturn]] static void fail(const std::string& message) { throw UserError(message); }

  void open(bool is_object) {
    if (levels_.size() >= kDeepestJson)
      fail(what_ + ": nested more than " + std::to_string(kDeepestJson) + " deep");
    levels_.push_back({.is_object = is_object, .keys = {}, .key = {}});
  }
  bool close() {
    levels_.pop_back();
    return true;
  }
  std::string place() const { return place_of(levels_.size()); }
  // The place of the value that `levels` outer objects and arrays hold: client_state.rng.state
  std::string place_of(size_t levels) const {
    std::string place = what_;
    for (size_t level = 0; level < levels; ++level)
      place += levels_[level].is_object ? "." + levels_[level].key.substr(0, kShown) : "[]";
    return place;
  }

  const std::string& what_;
  std::vector<Level> levels_;
};

}  // namespace

bool is_json_text(const std::string& text) {
  try {
    return !json(text).dump().empty();
  } catch (const json::exception&) {
    return false;
  }
}

void check_json(const std::string& text, const std::string& what) {
  if (text.size() > kLongestJson) {
    throw UserError(what + " has " + std::to_string(text.size()) + " bytes as JSON, expected at most " +
                    std::to_string(kLongestJson) + ": keep tensors as tensors, and data in files");
  }
  Checker checker(what);
  json::sax_parse(text, &checker);
}

std::string printable_text(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace zerorun::checkpoint
