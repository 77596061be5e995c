#include "checkpoint/manifest_text.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/json_text.h"

namespace zerorun::checkpoint {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Builds a JSON value from the events of a parser.
template <typename Json>
class Builder {
 public:
  void add(Json value) { insert(std::move(value)); }
  void open(Json empty) { open_.push_back(&insert(std::move(empty))); }
  void close() { open_.pop_back(); }
  void set_key(std::string key) { key_ = std::move(key); }
  Json take() { return std::move(root_); }

 private:
  Json& insert(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& outer = *open_.back();
    if (outer.is_array()) return outer.emplace_back(std::move(value));
    if constexpr (std::is_same_v<Json, ordered_json>) {
      // Its operator[] would compare the key with all earlier ones.
      return outer.template get_ref<ordered_json::object_t&>().emplace_back(key_, std::move(value)).second;
    } else {
      return outer[key_] = std::move(value);
    }
  }

  Json root_;
  std::vector<Json*> open_;
  std::string key_;
};

class ManifestReader : public nlohmann::json_sax<json> {
 public:
  explicit ManifestReader(const std::string& place) : place_(place) {}

  ManifestText take() && {
    ManifestText result{.members = members_.take(), .client_state = std::nullopt};
    if (has_client_) result.client_state = client_.take();
    return result;
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(json::number_integer_t value) override { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) override { return add(value); }
  bool number_float(json::number_float_t value, const std::string& /*text*/) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t& /*value*/) override { return false; }
  bool start_object(size_t /*elements*/) override { return open(json::value_t::object); }
  bool start_array(size_t /*elements*/) override { return open(json::value_t::array); }
  bool key(std::string& key) override {
    if (depth_ == 1) in_client_ = key == "client_state";
    if (in_client_ && depth_ == 1) {
      has_client_ = true;
    } else if (in_client_) {
      client_.set_key(std::move(key));
    } else {
      members_.set_key(std::move(key));
    }
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t /*position*/, const std::string& /*last_token*/,
                   const json::exception& error) override {
    throw UserError(place_ + ": " + error.what());
  }

 private:
  template <typename Value>
  bool add(Value&& value) {
    if (in_client_) {
      client_.add(std::forward<Value>(value));
    } else {
      members_.add(std::forward<Value>(value));
    }
    return true;
  }
  bool open(json::value_t kind) {
    if (depth_++ > kDeepestJson)
      throw UserError(place_ + ": nested more than " + std::to_string(kDeepestJson) + " deep");
    if (in_client_) {
      client_.open(kind);
    } else {
      members_.open(kind);
    }
    return true;
  }
  bool close() {
    if (--depth_ == 0) in_client_ = false;
    if (in_client_) {
      client_.close();
    } else {
      members_.close();
    }
    return true;
  }

  const std::string& place_;
  Builder<json> members_;
  Builder<ordered_json> client_;
  int depth_ = 0;
  bool in_client_ = false;  // in the value of the member client_state
  bool has_client_ = false;
};

}  // namespace

ManifestText parse_manifest_text(const std::string& text, const std::string& place) {
  ManifestReader reader(place);
  json::sax_parse(text, &reader);
  return std::move(reader).take();
}

nlohmann::ordered_json parse_client_state(const std::string& text) {
  return std::move(*parse_manifest_text("{\"client_state\":" + text + "}", "client_state").client_state);
}

}  // namespace zerorun::checkpoint
