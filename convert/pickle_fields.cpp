#include "convert/pickle_fields.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hexadecimal.h"

namespace zerorun::convert {
namespace {

std::string name_of(PickleKind kind) {
  switch (kind) {
    case PickleKind::none:
      return "None";
    case PickleKind::boolean:
      return "a boolean";
    case PickleKind::integer:
      return "an integer";
    case PickleKind::large_integer:
      return "an integer of more than 64 bits";
    case PickleKind::real:
      return "a float";
    case PickleKind::text:
      return "a string";
    case PickleKind::bytes:
      return "bytes";
    case PickleKind::list:
      return "a list";
    case PickleKind::tuple:
      return "a tuple";
    case PickleKind::set:
      return "a set";
    case PickleKind::dict:
      return "a dict";
    case PickleKind::global:
      return "a class";
    case PickleKind::object:
      return "an object";
    case PickleKind::persistent:
      return "a storage";
  }
  return "";
}

[[noreturn]] void fail_kind(const PickledField& field, const std::string& expected) {
  throw UserError(field.place + ": expected " + expected + ", found " + name_of(field.value.kind()));
}

// Returns the key for messages: shortened and without control characters, because the file may be malicious.
std::string printable(std::string_view key) {
  constexpr size_t kLongest = 120;
  std::string text;
  for (const char character : key.substr(0, kLongest)) {
    text += static_cast<unsigned char>(character) < 0x20 || character == 0x7f ? '?' : character;
  }
  return key.size() > kLongest ? text + "..." : text;
}

// Throws UserError for a name that is not UTF-8, because names are written to JSON files.
void check_name(const std::string& name, const std::string& place) {
  try {
    nlohmann::json(name).dump();
  } catch (const nlohmann::json::type_error&) {
    throw UserError(place + ": a name is not UTF-8 text: " + printable(name));
  }
}

class JsonWriter {
 public:
  explicit JsonWriter(const std::string& place) : place_(place) {}

  bool has_storages() const { return has_storages_; }

  nlohmann::ordered_json write(const PickleValue& value, int depth = 0) {
    constexpr int kDeepest = 100;
    constexpr int64_t kMostValues = 1'000'000;
    if (depth > kDeepest) throw UserError(place_ + ": nested more than 100 deep, or contains itself");
    if (++values_ > kMostValues) throw UserError(place_ + ": more than a million values");
    switch (value.kind()) {
      case PickleKind::none:
        return nullptr;
      case PickleKind::boolean:
        return value.boolean();
      case PickleKind::integer:
        return value.integer();
      case PickleKind::real:
        return of_real(value.real());
      case PickleKind::large_integer:
      case PickleKind::text:
      case PickleKind::global:
        return valid(value.text());
      case PickleKind::bytes:
        return digits_of(value.text());
      case PickleKind::list:
      case PickleKind::tuple:
      case PickleKind::set:
        return of_items(value, depth);
      case PickleKind::dict:
        return of_dict(value, depth);
      case PickleKind::object:
        return of_object(value, depth);
      case PickleKind::persistent:
        has_storages_ = true;
        return {{"storage", write(value.arguments(), depth + 1)}};
    }
    return nullptr;
  }

 private:
  static nlohmann::ordered_json of_real(double real) {
    if (std::isfinite(real)) return real;
    return std::isnan(real) ? "NaN" : real > 0 ? "Infinity" : "-Infinity";
  }
  // Limits the output, because a pickle may refer to one long text a million times.
  void count_bytes(const std::string& text) {
    constexpr size_t kMostBytes = size_t{64} << 20;
    bytes_ += text.size();
    if (bytes_ > kMostBytes) throw UserError(place_ + ": more than 64 MiB of text");
  }
  // Returns the text with invalid UTF-8 replaced.
  std::string valid(const std::string& text) {
    count_bytes(text);
    const std::string quoted =
        nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return nlohmann::json::parse(quoted).get<std::string>();
  }
  std::string digits_of(const std::string& bytes) {
    count_bytes(bytes);
    return in_hexadecimal(bytes);
  }
  nlohmann::ordered_json of_items(const PickleValue& value, int depth) {
    auto items = nlohmann::ordered_json::array();
    for (size_t index = 0; index < value.size(); ++index)
      items.push_back(write(value.item(index), depth + 1));
    return items;
  }
  // Uses nlohmann::json for the members, because ordered_json searches all keys for each new key.
  nlohmann::ordered_json of_dict(const PickleValue& value, int depth) {
    nlohmann::json members = nlohmann::json::object();
    for (size_t index = 0; index + 1 < value.size(); index += 2) {
      const PickleValue key = value.item(index);
      const nlohmann::ordered_json name = write(key, depth + 1);
      // The text of a key that is no text may be a key again, one level up, and doubles there.
      std::string written = key.is(PickleKind::text) ? name.get<std::string>() : name.dump();
      if (!key.is(PickleKind::text)) count_bytes(written);
      members[std::move(written)] = write(value.item(index + 1), depth + 1);
    }
    return members;
  }
  nlohmann::ordered_json of_object(const PickleValue& value, int depth) {
    nlohmann::ordered_json object = {{"class", write(value.callee(), depth + 1)},
                                     {"arguments", write(value.arguments(), depth + 1)}};
    if (const auto state = value.state()) object["state"] = write(*state, depth + 1);
    if (value.size() > 0) object["items"] = of_items(value, depth);
    return object;
  }

  const std::string& place_;
  int64_t values_ = 0;
  size_t bytes_ = 0;
  bool has_storages_ = false;
};

}  // namespace

std::optional<PickledField> PickledField::find(std::string_view key) const {
  if (!value.is(PickleKind::dict)) fail_kind(*this, "a dict");
  const auto found = value.find(key);
  if (!found || found->is(PickleKind::none)) return std::nullopt;
  return PickledField{place + "." + printable(key), *found};
}

PickledField PickledField::need(std::string_view key) const {
  auto found = find(key);
  if (!found) throw UserError(place + ": \"" + printable(key) + "\" is missing");
  return *found;
}

PickledField PickledField::item(size_t index) const {
  if (!value.is(PickleKind::list) && !value.is(PickleKind::tuple)) fail_kind(*this, "a list");
  if (index >= value.size())
    throw UserError(place + ": " + std::to_string(value.size()) + " items, expected at least " +
                    std::to_string(index + 1));
  return {place + "[" + std::to_string(index) + "]", value.item(index)};
}

int64_t PickledField::integer() const {
  if (value.is(PickleKind::integer)) return value.integer();
  if (value.is(PickleKind::boolean)) return value.boolean() ? 1 : 0;
  const bool is_enumerator = value.is(PickleKind::object) && value.arguments().is(PickleKind::tuple) &&
                             value.arguments().size() == 1 &&
                             value.arguments().item(0).is(PickleKind::integer);
  if (is_enumerator) return value.arguments().item(0).integer();
  constexpr double kExact = 9007199254740992;  // 2^53
  if (value.is(PickleKind::real) && std::abs(value.real()) <= kExact &&
      std::trunc(value.real()) == value.real())
    return static_cast<int64_t>(value.real());
  fail_kind(*this, "an integer");
}

double PickledField::real() const {
  if (value.is(PickleKind::real)) return value.real();
  if (value.is(PickleKind::integer)) return static_cast<double>(value.integer());
  fail_kind(*this, "a number");
}

const std::string& PickledField::text() const {
  if (!value.is(PickleKind::text)) fail_kind(*this, "a string");
  check_name(value.text(), place);
  return value.text();
}

std::vector<PickledField> PickledField::items() const {
  std::vector<PickledField> all;
  if (!value.is(PickleKind::list) && !value.is(PickleKind::tuple)) fail_kind(*this, "a list");
  for (size_t index = 0; index < value.size(); ++index) all.push_back(item(index));
  return all;
}

// The value may be a tuple, a list, or an object constructed from one of these (torch.Size).
std::vector<int64_t> PickledField::integers() const {
  const bool is_object = value.is(PickleKind::object) && value.arguments().is(PickleKind::tuple) &&
                         value.arguments().size() == 1;
  const PickledField source = is_object ? PickledField{place, value.arguments().item(0)} : *this;
  std::vector<int64_t> all;
  for (const PickledField& count : source.items()) all.push_back(count.integer());
  return all;
}

std::vector<std::string> PickledField::texts() const {
  std::vector<std::string> all;
  for (const PickledField& name : items()) all.push_back(name.text());
  return all;
}

std::vector<std::pair<std::string, PickledField>> PickledField::entries() const {
  if (!value.is(PickleKind::dict)) fail_kind(*this, "a dict");
  std::vector<std::pair<std::string, PickledField>> all;
  for (size_t index = 0; index + 1 < value.size(); index += 2) {
    const PickleValue key = value.item(index);
    if (!key.is(PickleKind::text))
      throw UserError(place + ": a key is " + name_of(key.kind()) + ", expected a string");
    check_name(key.text(), place);
    all.push_back({key.text(), {place + "." + printable(key.text()), value.item(index + 1)}});
  }
  return all;
}

nlohmann::ordered_json to_json(const PickledField& field, bool* has_storages) {
  JsonWriter writer(field.place);
  auto json = writer.write(field.value);
  if (has_storages) *has_storages = writer.has_storages();
  return json;
}

}  // namespace zerorun::convert
