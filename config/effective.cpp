// Finds the settings that affect a run and where their values come from, for show_settings() and
// compare_settings().
#include <algorithm>

#include "config/check.h"
#include "config/compare.h"

namespace zerorun::config {
namespace {

constexpr std::size_t comment_column = 64;

/// A key that show_settings() prints or compare_settings() compares.
struct EffectiveSetting {
  const KeyFact* fact = nullptr;
  std::string value;   // as JSON; "auto" in quotes if it has no value yet
  std::string origin;  // where the value comes from, such as "line 7" or "default"
};

/// Whether the file has all optional sections that contain `path`. A section is optional if it may be null,
/// like optimizer.
bool has_sections(const Settings& settings, std::string_view path) {
  for (auto section = section_of(path); !section.empty(); section = section_of(section)) {
    const KeyFact* fact = find_key(section);
    const bool optional = fact && fact->nullable;
    if (optional && !settings.find(section)) return false;
  }
  return true;
}

bool fits_type(const Settings& settings, const KeyFact& fact) {
  if (fact.types.empty()) return true;
  const auto type = settings.get<std::string>(join_path(section_of(section_of(fact.path)), "type"));
  return type && has_word(fact.types, *type);
}

bool fits_stage(const Settings& settings, const KeyFact& fact) {
  return !name_of(fact.path).starts_with("stage3_") ||
         settings.get<int64_t>("zero_optimization.stage").value_or(3) == 3;
}

/// Whether all sections that contain the key are switched on. If the key is the switch of a section, the
/// state of that section does not matter.
bool fits_switches(const Settings& settings, const KeyFact& fact) {
  for (auto section = section_of(fact.path); !section.empty(); section = section_of(section)) {
    const KeyFact* outer = find_key(section);
    if (!outer || outer->switch_key.empty()) continue;
    const std::string path = join_path(section, outer->switch_key);
    if (path != fact.path && settings.at_default(path)) return false;
  }
  return true;
}

bool applies(const Settings& settings, const KeyFact& fact, bool ineffective) {
  const Setting* setting = settings.find(fact.path);
  if (setting && setting->source == Source::refused) return false;
  const bool reported = setting && (fact.changes_result || ineffective);
  if (fact.status != KeyStatus::supported && !reported) return false;
  return has_sections(settings, fact.path) && fits_type(settings, fact) && fits_stage(settings, fact) &&
         fits_switches(settings, fact);
}

/// `setting` is null if the key has the table's default.
std::string source_of(const KeyFact& fact, const Setting* setting) {
  if (!setting) return "default";
  const std::string line = setting->at ? "line " + std::to_string(setting->at->line) : "";
  const bool renamed = setting->at && setting->written != fact.path;
  switch (setting->source) {
    case Source::program:
      return line + ": auto, from the program's arguments";
    case Source::model:
      return line + ": auto, from the model's hidden size";
    case Source::fallback:
      return line + ": auto, the default";
    case Source::open:
      return line + (fact.automatic == Automatic::model ? ": from the model's hidden size"
                                                        : ": from the program's arguments");
    case Source::derived:
      return (line.empty() ? "" : line + ": auto, ") + "follows from the others";
    default:
      return renamed ? line + ": " + setting->written : line;
  }
}

std::string origin_of(const KeyFact& fact, const Setting* setting) {
  const std::string source = source_of(fact, setting);
  if (fact.status == KeyStatus::no_effect) return source + "; no effect";
  return source + (fact.status == KeyStatus::not_supported ? "; not supported" : "");
}

/// Returns the settings that apply, in the order of the key table. With `ineffective`, also returns settings
/// in the file that have no effect. A key does not apply if its optimizer or scheduler is absent or of
/// another type, if it belongs to another stage, or if its section is switched off.
std::vector<EffectiveSetting> effective_settings(const Settings& settings, bool ineffective = false) {
  std::vector<EffectiveSetting> result;
  for (const KeyFact* fact : key_facts()) {
    if (fact->type == KeyType::section || !applies(settings, *fact, ineffective)) continue;
    const Setting* setting = settings.find(fact->path);
    const SettingValue value = setting ? setting->value : fallback_of(*fact);
    const bool has_value = !std::holds_alternative<std::monostate>(value);
    const bool automatic =
        setting && (setting->source == Source::open || setting->source == Source::fallback);
    if (!has_value && !automatic) continue;
    const std::string shown = fact->secret ? "\"(secret)\"" : to_json(value);
    result.push_back({fact, has_value ? shown : "\"auto\"", origin_of(*fact, setting)});
  }
  return result;
}

struct Line {
  std::string text;
  std::string comment;
};

/// Prints the settings of a section, one line per key.
std::vector<Line> lines_of(const std::vector<EffectiveSetting>& settings, std::string_view section,
                           const std::string& indent) {
  std::vector<Line> lines;
  const auto separate = [&] {
    if (!lines.empty()) lines.back().text += ",";
  };
  for (const KeyFact* fact : facts_in(section)) {
    const std::string name = indent + "\"" + std::string(name_of(fact->path)) + "\": ";
    if (fact->type == KeyType::section) {
      const auto inner = lines_of(settings, fact->path, indent + "  ");
      if (inner.empty()) continue;
      separate();
      lines.push_back({name + "{", ""});
      lines.insert(lines.end(), inner.begin(), inner.end());
      lines.push_back({indent + "}", ""});
    } else if (const auto found = std::ranges::find(settings, fact, &EffectiveSetting::fact);
               found != settings.end()) {
      separate();
      lines.push_back({name + found->value, found->origin});
    }
  }
  return lines;
}

}  // namespace

std::string show_settings(const Settings& settings) {
  std::string result = "{\n";
  for (const auto& [text, comment] : lines_of(effective_settings(settings, true), "", "  ")) {
    result += text;
    if (!comment.empty()) {
      const std::size_t column = std::max(text.size() + 2, comment_column);
      result += std::string(column - text.size(), ' ') + "// " + comment;
    }
    result += "\n";
  }
  return result + "}\n";
}

std::vector<Difference> compare_settings(const Settings& first, const Settings& second) {
  const auto a = effective_settings(first);
  const auto b = effective_settings(second);
  const auto at = [](const std::vector<EffectiveSetting>& settings, const KeyFact* fact) {
    const auto found = std::ranges::find(settings, fact, &EffectiveSetting::fact);
    return found == settings.end() ? EffectiveSetting() : *found;
  };
  std::vector<Difference> differences;
  for (const KeyFact* fact : key_facts()) {
    const EffectiveSetting in_a = at(a, fact);
    const EffectiveSetting in_b = at(b, fact);
    if (in_a.value == in_b.value) continue;
    differences.push_back({std::string(fact->path), in_a.value, in_b.value, in_a.origin, in_b.origin});
  }
  return differences;
}

}  // namespace zerorun::config
