#include "base/name_pattern.h"

namespace zerorun {
namespace {

// Takes the part before the first dot from `name`.
std::string_view take_part(std::string_view& name) {
  const size_t dot = name.find('.');
  const std::string_view part = name.substr(0, dot);
  name.remove_prefix(dot == std::string_view::npos ? name.size() : dot + 1);
  return part;
}

}  // namespace

bool matches_name(std::string_view pattern, std::string_view name) {
  while (!pattern.empty() && !name.empty()) {
    const std::string_view wanted = take_part(pattern);
    if (wanted != take_part(name) && wanted != "*") return false;
  }
  return pattern.empty() && name.empty();
}

// The first place of each part between stars leaves the most for the next ones.
bool matches_anywhere(std::string_view pattern, std::string_view name) {
  while (true) {
    const size_t star = pattern.find('*');
    const std::string_view part = pattern.substr(0, star);
    const size_t found = name.find(part);
    if (found == std::string_view::npos) return false;
    if (star == std::string_view::npos) return true;
    name.remove_prefix(found + part.size());
    pattern.remove_prefix(star + 1);
  }
}

}  // namespace zerorun
