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

/// Prints the settings section by section, one key and its comment per line.
class Printer {
 public:
  explicit Printer(const Settings& settings) : effective_(effective_settings(settings, true)) {}

  std::string print() {
    std::string result = "{\n";
    print_members("", 1);
    for (const Line& line : lines_) {
      std::string text = line.text;
      if (!line.comment.empty()) {
        text += std::string(std::max<std::size_t>(text.size() + 2, comment_column) - text.size(), ' ');
        text += "// " + line.comment;
      }
      result += text + "\n";
    }
    return result + "}\n";
  }

 private:
  bool has_members(std::string_view section) const {
    const std::string prefix = std::string(section) + ".";
    return std::ranges::any_of(effective_,
                               [&](const auto& item) { return item.fact->path.starts_with(prefix); });
  }

  void print_members(std::string_view section, int depth) {
    std::size_t last = lines_.size();  // the line that gets a comma when another member follows
    bool any = false;
    for (const KeyFact* fact : key_facts()) {
      if (section_of(fact->path) != section) continue;
      const auto effective = std::ranges::find(effective_, fact, &EffectiveSetting::fact);
      const bool subsection = fact->type == KeyType::section && has_members(fact->path);
      if (effective == effective_.end() && !subsection) continue;
      if (any) lines_[last].text += ",";
      any = true;
      const std::string name = indent(depth) + "\"" + std::string(name_of(fact->path)) + "\": ";
      if (subsection) {
        lines_.push_back({name + "{", ""});
        print_members(fact->path, depth + 1);
        lines_.push_back({indent(depth) + "}", ""});
      } else {
        lines_.push_back({name + effective->value, origin_of(*effective)});
      }
      last = lines_.size() - 1;
    }
  }

  static std::string indent(int depth) { return std::string(static_cast<std::size_t>(depth) * 2, ' '); }

  std::vector<EffectiveSetting> effective_;
  std::vector<Line> lines_;
};

}  // namespace

std::string show_settings(const Settings& settings) {
  return Printer(settings).print();
}

}  // namespace zerorun
