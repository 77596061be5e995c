#include <algorithm>

#include "config/check.h"
#include "config/effective.h"

namespace zerorun {
namespace {

constexpr std::size_t comment_column = 64;

struct Line {
  std::string text;
  std::string comment;
};

/// The lines of a section's settings, one for each key.
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

}  // namespace zerorun
