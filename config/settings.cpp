#include "config/settings.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace zerorun::config {
namespace {

template <typename Number>
std::string shortest(Number value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string to_json(const SettingValue& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::monostate>) {
          return "null";
        } else if constexpr (std::is_same_v<Held, bool>) {
          return held ? "true" : "false";
        } else if constexpr (std::is_same_v<Held, std::string>) {
          return quoted(held);
        } else if constexpr (std::is_same_v<Held, std::vector<double>>) {
          std::string list;
          for (const double item : held) list += (list.empty() ? "" : ", ") + shortest(item);
          return "[" + list + "]";
        } else if constexpr (std::is_same_v<Held, std::vector<std::string>>) {
          std::string list;
          for (const std::string& item : held) list += (list.empty() ? "" : ", ") + quoted(item);
          return "[" + list + "]";
        } else {
          return shortest(held);
        }
      },
      value);
}

SettingValue fallback_of(const KeyFact& fact) {
  if (fact.fallback.empty()) return {};
  const auto json = nlohmann::json::parse(fact.fallback);
  switch (fact.type) {
    case KeyType::integer:
    case KeyType::size:
      return json.get<int64_t>();
    case KeyType::number:
      return json.get<double>();
    case KeyType::boolean:
      return json.get<bool>();
    case KeyType::text:
    case KeyType::choice:
      return json.get<std::string>();
    case KeyType::number_list:
      return json.get<std::vector<double>>();
    case KeyType::text_list:
      return json.get<std::vector<std::string>>();
    default:
      return {};
  }
}

void Settings::put(Setting setting) {
  settings_.insert_or_assign(std::string(setting.fact->path), std::move(setting));
}

void Settings::derive(std::string_view path, SettingValue value) {
  if (given(path) || undecided(path)) return;
  const Setting* automatic = find(path);
  put({&row_of(path), std::move(value), Source::derived, automatic ? automatic->at : std::nullopt,
       written(path)});
}

const Setting* Settings::find(std::string_view path) const {
  const auto found = settings_.find(path);
  return found == settings_.end() ? nullptr : &found->second;
}

bool Settings::given(std::string_view path) const {
  const Setting* setting = find(path);
  return setting && (setting->source == Source::file || setting->source == Source::program ||
                     setting->source == Source::model);
}

bool Settings::undecided(std::string_view path) const {
  const Setting* setting = find(path);
  return setting && (setting->source == Source::open || setting->source == Source::refused);
}

bool Settings::at_default(std::string_view path) const {
  const SettingValue value = value_of(path);
  return !std::holds_alternative<std::monostate>(value) && value == fallback_of(row_of(path));
}

SettingValue Settings::value_of(std::string_view path) const {
  const KeyFact& fact = row_of(path);
  const Setting* setting = find(fact.path);
  return setting ? setting->value : fallback_of(fact);
}

Position Settings::place(std::string_view path) const {
  for (std::string_view at = path; !at.empty(); at = section_of(at)) {
    const Setting* setting = find(at);
    if (setting && setting->at) return *setting->at;
  }
  return root_;
}

std::string Settings::written(std::string_view path) const {
  const Setting* setting = find(path);
  return setting && setting->at ? setting->written : std::string(path);
}

}  // namespace zerorun::config
